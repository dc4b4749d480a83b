-- sweep_hash_expire.lua: gives a hash lock a TTL, only while it is the one that was looked at and has none.
--
-- KEYS key        the key
-- ARGV ttl        the TTL in milliseconds
-- ARGV fields...  the first field, its value, and so on
-- Reply    1 given, 0 the key is absent, is no hash, holds other fields, or has a TTL
--
-- Atomic because between a look and the PEXPIRE another holder can take the lock.
if redis.call('TYPE', key).ok ~= 'hash' or redis.call('PTTL', key) ~= -1 then return 0 end
if redis.call('HLEN', key) ~= (#ARGV - 1) / 2 then return 0 end
for i = 2, #ARGV, 2 do
  if redis.call('HGET', key, ARGV[i]) ~= ARGV[i + 1] then return 0 end
end
return redis.call('PEXPIRE', key, ttl)
