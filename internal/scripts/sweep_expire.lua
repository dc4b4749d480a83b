-- sweep_expire.lua: gives a key a TTL, only while it holds a given value and has none.
--
-- KEYS key    the key
-- ARGV value  the value that it must hold
-- ARGV ttl    the TTL in milliseconds
-- Reply    1 given, 0 the key is absent, holds something else, has a TTL, or is not a string
--
-- Atomic because between a look and the PEXPIRE a client can take the lock: its value would then vanish
-- while it works.
if redis.call('TYPE', key).ok ~= 'string' or redis.call('GET', key) ~= value then return 0 end
if redis.call('PTTL', key) ~= -1 then return 0 end
return redis.call('PEXPIRE', key, ttl)
