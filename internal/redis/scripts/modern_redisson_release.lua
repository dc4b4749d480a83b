-- modern_redisson_release.lua: deletes the lock if it is the holder's, and announces that, as the last hold's RLock.unlockInner does.
--
-- KEYS key      the lock's name
-- ARGV holder   the holder
-- ARGV channel  the channel: redisson_lock__channel:{name}, or redisson_lock__channel:name where the name has a brace.
--               It is no key here, as it is in Redisson's script: it may hash to another slot than the name
-- Reply    1 deleted and announced, 0 the holder does not hold the lock
--
-- Atomic because between a look and a deletion another client can take the key.
-- The holder's count does not matter. Redisson counts down, and keeps a latch key: a release whose reply was lost is sent
-- again, and must not count twice. Here each acquisition has a holder of its own. Its count is one, or more after a command that
-- was sent again. A release that arrives late, or twice, finds nothing.
-- On a cluster Redisson waits on a sharded channel, elsewhere on a common one: both are told. A user who may not publish,
-- and a server without sharded channels, keep no release from its end.
-- A server that is out of memory allows the deletion. The message about it comes last, and may be refused.
-- include replica.lua
if redis.call('hexists', key, holder) == 0 then
  local there = redis.pcall('exists', key) -- a user who may not ask is not told of a replica
  return type(there) == 'number' and replica(key, there == 1) or 0
end
redis.call('del', key)
redis.pcall('publish', channel, '0')
redis.pcall('spublish', channel, '0')
return 1
