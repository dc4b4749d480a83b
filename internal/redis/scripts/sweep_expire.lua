-- sweep_expire.lua: gives a lock a TTL, only while it is the one that was looked at and has none.
--
-- KEYS key          the key
-- ARGV ttl          the TTL in milliseconds
-- ARGV contents...  what it must hold: its value; of a hash the first field, its value, and so on
-- Reply    1 given, 0 the key is absent, is of another type, holds something else, or has a TTL
--
-- Atomic because between a look and the PEXPIRE a client can take the lock: its value would then vanish
-- while it works.
local kind = redis.call('TYPE', key).ok
if redis.call('PTTL', key) ~= -1 then return 0 end
if kind == 'string' then
  if #ARGV ~= 2 or redis.call('GET', key) ~= ARGV[2] then return 0 end
elseif kind ~= 'hash' or redis.call('HLEN', key) ~= (#ARGV - 1) / 2 then
  return 0
else
  for i = 2, #ARGV, 2 do
    if redis.call('HGET', key, ARGV[i]) ~= ARGV[i + 1] then return 0 end
  end
end
return redis.call('PEXPIRE', key, ttl)
