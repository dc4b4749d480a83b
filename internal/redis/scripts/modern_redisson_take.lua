-- modern_redisson_take.lua: Redisson's RLock.tryLockInner, word for word in its effects.
--
-- KEYS key     the lock's name
-- ARGV ttl     the TTL in milliseconds
-- ARGV holder  the holder: "<client uuid>:<thread id>"
-- Reply    nil taken, or taken once more by the same holder; else the remaining ms (-1: no TTL)
--
-- The key is a hash of one field, the holder, whose value is the hold count. Atomic because the
-- EXISTS, the count and the TTL are three commands.
-- pexpire comes first, also where there is no key yet: where it is refused, no lock without a TTL is made.
if redis.call('exists', key) == 0 or redis.call('hexists', key, holder) == 1 then
  local lives = redis.call('pexpire', key, ttl)
  redis.call('hincrby', key, holder, 1)
  if lives == 0 then redis.call('pexpire', key, ttl) end
  return nil
end
return redis.call('pttl', key)
