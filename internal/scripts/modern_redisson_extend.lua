-- modern_redisson_extend.lua: Redisson's RLock.renewExpiration.
--
-- KEYS[1]  the lock's name
-- ARGV[1]  the TTL in milliseconds
-- ARGV[2]  the holder
-- Reply    1 extended, 0 the holder does not hold the lock
--
-- Atomic because between the HEXISTS and the PEXPIRE another holder can take the lock.
if redis.call('hexists', KEYS[1], ARGV[2]) == 1 then
  redis.call('pexpire', KEYS[1], ARGV[1])
  return 1
end
return 0
