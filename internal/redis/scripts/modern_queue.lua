-- modern_queue.lua: takes a key, or takes a place in its queue; asking twice is asking once.
--
-- KEYS key          the lock's key
-- KEYS queue        the key's queue
-- KEYS guard        the guard of the bridge: a bridge client that waits gets it with the key
-- KEYS [fence]      the fencing counter, or the lock's key when none is wanted
-- KEYS [state]      where the share's state is; without a share, that of the bridge's gaps; or the lock's key when none is wanted
-- ARGV token        the token
-- ARGV ttl          the TTL in milliseconds
-- ARGV entry        the waiter's entry, see queue_grant.lua
-- ARGV queue_ttl    the queue's TTL in milliseconds: longer than the longest time between two asks of a waiter
-- ARGV [fence_ttl]  the counter's TTL in milliseconds, 0 when none is wanted
-- ARGV [share]      the share in milliseconds that clients have who only poll, 0 for none
--                   Where neither counter nor share is wanted, what is in brackets is left out.
-- Reply    {1, fencing token or 0, 0} taken
--          {-n, remaining ms, ticket} held by another (-1: no TTL), or free
--          but left to others for so long; n wait before us
--          error QUEUE             the queue's key holds something else; nothing was done
--
-- Atomic because a client that finds the key free gives it to the head of the queue, not to itself.
-- With two commands a newcomer could pass everybody who waits.
-- GET comes first. Over a connection with tracking on, it makes the server tell us of the next
-- change to this key only.
-- The key is written after everything that may be refused: an error means that nothing was taken.
-- include effects.lua
if old_server then return old_server end
local held = redis.call('GET', key)
if not held and not fence_ttl then
  local head = redis.call('EXISTS', queue) == 1 and redis.pcall('ZRANGE', queue, 0, 0)
  head = head and (head[1] or head.err)
  local ours = not head or head == entry
  local gap = ours and state and redis.pcall('GET', state)
  if ours and not (type(gap) == 'string' and string.find(gap, '^1 ')) then
    redis.call('SET', key, token, 'PX', ttl)
    if head then redis.pcall('ZREM', queue, head) end
    return {1, 0, 0}
  end
end
-- include clock.lua
-- include fence.lua
-- include queue_grant.lua
-- include modern_share.lua
fence_ttl = fence_ttl or '0'
if held == token then
  local n = next_fence(fence, fence_ttl)
  redis.call('PEXPIRE', key, ttl)
  redis.pcall('ZREM', queue, entry)
  return {1, n, 0}
end
local function unusable(refusal) -- what stands on the queue's key is no queue, or we may not use it
  if not string.find(refusal.err, 'WRONGTYPE', 1, true) then return refusal end
  return redis.error_reply('QUEUE ' .. queue .. ' is no sorted set: something else uses the name of the queue')
end
local free = 0
if not held then free = shared(state, share or '0') end
if not held and free == 0 then
  local head = redis.pcall('ZRANGE', queue, 0, 0)
  if head.err then return unusable(head) end
  head = head[1]
  if not head or head == entry then
    local n = next_fence(fence, fence_ttl)
    redis.call('SET', key, token, 'PX', ttl)
    if head then redis.pcall('ZREM', queue, head) end
    return {1, n, 0}
  end
end
local ticket, before = join(queue, queue_ttl, entry)
if not ticket then return unusable(before) end
if held or free > 0 then
  return {-before, free > 0 and free or redis.call('PTTL', key), ticket}
end
redis.call('SET', key, token, 'XX', 'PX', ttl) -- sets nothing: it asks for the right that a grant needs
if not grant(key, queue, guard, fence, fence_ttl, {own = token}) then -- our turn: nobody before us listens
  local n = next_fence(fence, fence_ttl)
  redis.call('SET', key, token, 'PX', ttl)
  redis.pcall('ZREM', queue, entry)
  return {1, n, 0}
end
local left = redis.pcall('PTTL', key)
local rank = redis.pcall('ZRANK', queue, entry)
return {-(tonumber(rank) or before), tonumber(left) or 1000, ticket}
