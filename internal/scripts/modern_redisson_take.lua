-- modern_redisson_take.lua: Redisson's RLock.tryLockInner, word for word in its effects.
--
-- KEYS[1]  the lock's name
-- ARGV[1]  the TTL in milliseconds
-- ARGV[2]  the holder: "<client uuid>:<thread id>"
-- Reply    nil taken, or taken once more by the same holder; else the remaining ms (-1: no TTL)
--
-- The key is a hash of one field, the holder, whose value is the hold count. Atomic because the
-- EXISTS, the count and the TTL are three commands.
-- pexpire comes first, also where there is no key yet: where it is refused, no lock without a TTL is made.
if redis.call('exists', KEYS[1]) == 0 or redis.call('hexists', KEYS[1], ARGV[2]) == 1 then
  local lives = redis.call('pexpire', KEYS[1], ARGV[1])
  redis.call('hincrby', KEYS[1], ARGV[2], 1)
  if lives == 0 then redis.call('pexpire', KEYS[1], ARGV[1]) end
  return nil
end
return redis.call('pttl', KEYS[1])
