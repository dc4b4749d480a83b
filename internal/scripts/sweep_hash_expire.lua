-- sweep_hash_expire.lua: gives a hash lock a TTL, only while it is the one that was looked at and has none.
--
-- KEYS[1]  the key
-- ARGV[1]  the TTL in milliseconds
-- ARGV[2]  the first field; ARGV[3] its value; further pairs follow
-- Reply    1 given, 0 the key is absent, is no hash, holds other fields, or has a TTL
--
-- Atomic because between a look and the PEXPIRE another holder can take the lock.
if redis.call('TYPE', KEYS[1]).ok ~= 'hash' or redis.call('PTTL', KEYS[1]) ~= -1 then return 0 end
if redis.call('HLEN', KEYS[1]) ~= (#ARGV - 1) / 2 then return 0 end
for i = 2, #ARGV, 2 do
  if redis.call('HGET', KEYS[1], ARGV[i]) ~= ARGV[i + 1] then return 0 end
end
return redis.call('PEXPIRE', KEYS[1], ARGV[1])
