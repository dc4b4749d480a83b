-- modern_take.lua: takes a key that is free or ours already; asking twice is asking once.
--
-- KEYS key        the lock's key
-- KEYS fence      the fencing counter, or the lock's key when none is wanted
-- ARGV token      the token
-- ARGV ttl        the TTL in milliseconds
-- ARGV fence_ttl  the counter's TTL in milliseconds, 0 when none is wanted
-- ARGV [queues]   1: the client's first attempt: it is going to use the queue, and must be able to give back; left out
--                 otherwise
-- Reply    {1, fencing token or 0, 0} taken; {0, remaining ms, 0} held by another (-1: no TTL)
--
-- Atomic because the fencing token must be drawn by the holder, in the order of holding. The counter never goes back while
-- it lives. When it has expired, the server's clock in microseconds takes its place. A counter could be ahead of that only
-- with more than a lock per microsecond.
-- GET comes by pcall: a key of any type that another holds is held, without a WRONGTYPE error. Any other refusal of
-- GET is the script's error.
-- A user who may take a lock and may not delete it would leave each lock until its TTL ends. So the first attempt asks for
-- the right: it deletes the key where there is none.
-- The key is written last: where the clock or the counter is refused, nothing is taken.
-- include effects.lua
-- include clock.lua
-- include fence.lua
if old_server and (fence_ttl ~= '0' or queues) then return old_server end -- without fencing and queue it needs no clock
local found = redis.pcall('GET', key)
if type(found) == 'table' and not string.find(found.err, 'WRONGTYPE', 1, true) then return redis.call('GET', key) end
if not found then
  if queues then redis.call('DEL', key) end
  local n = next_fence(fence, fence_ttl)
  redis.call('SET', key, token, 'PX', ttl)
  return {1, n, 0}
end
if found == token then
  local n = next_fence(fence, fence_ttl)
  redis.call('PEXPIRE', key, ttl)
  return {1, n, 0}
end
return {0, redis.call('PTTL', key), 0}
