-- modern_redisson_extend.lua: Redisson's RLock.renewExpiration.
--
-- KEYS key     the lock's name
-- ARGV ttl     the TTL in milliseconds
-- ARGV holder  the holder
-- Reply    1 extended, 0 the holder does not hold the lock
--
-- Atomic because between the HEXISTS and the PEXPIRE another holder can take the lock.
-- include replica.lua
if redis.call('hexists', key, holder) == 1 then
  redis.call('pexpire', key, ttl)
  return 1
end
local there = redis.pcall('exists', key) -- a user who may not ask is not told of a replica
return type(there) == 'number' and replica(key, there == 1) or 0
