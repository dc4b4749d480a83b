-- modern_redisson_release.lua: Redisson's RLock.unlockInner, without its latch for retries.
--
-- KEYS key      the lock's name
-- ARGV ttl      the TTL in milliseconds, set again while holds remain
-- ARGV holder   the holder
-- ARGV channel  the channel: redisson_lock__channel:{name}, or redisson_lock__channel:name where the name has a brace.
--               It is no key here, as it is in Redisson's script: it may hash to another slot than the name
-- Reply    nil the holder does not hold the lock, 0 holds remain, 1 released and announced
--
-- Atomic because the last hold must take the key away before another client can find it at zero.
-- On a cluster Redisson waits on a sharded channel, elsewhere on a common one: both are told. A user who may not publish,
-- and a server without sharded channels, keep no release from its end.
-- Redisson keeps a latch key so that its own retry of a lost reply is not counted twice; here the
-- count is read back instead before anything is sent again.
-- The last hold is deleted, not counted down, and a count is only written after a pexpire: so a server that
-- is out of memory allows it. The message about it comes last, and may be refused.
-- include replica.lua
local count = redis.call('hget', key, holder)
if not count then return replica(key, redis.call('exists', key) == 1) end
if (tonumber(count) or 0) > 1 then
  redis.pcall('pexpire', key, ttl)
  redis.call('hincrby', key, holder, -1)
  return 0
end
redis.call('del', key)
redis.pcall('publish', channel, '0')
redis.pcall('spublish', channel, '0')
return 1
