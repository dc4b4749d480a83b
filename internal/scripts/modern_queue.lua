-- modern_queue.lua: takes a key, or takes a place in its queue; asking twice is asking once.
--
-- KEYS[1]  the lock's key
-- KEYS[2]  the key's queue
-- KEYS[3]  the fencing counter, or the lock's key when none is wanted
-- KEYS[4]  where the share's state is, or the lock's key when none is wanted
-- ARGV[1]  the token
-- ARGV[2]  the TTL in milliseconds
-- ARGV[3]  the waiter's entry: "<token> <claim ms> <channel>"
-- ARGV[4]  the queue's TTL in milliseconds: longer than the longest time between two asks of a waiter
-- ARGV[5]  the counter's TTL in milliseconds, 0 when none is wanted
-- ARGV[6]  the share in milliseconds that clients have who only poll, 0 for none
--          Where neither counter nor share is wanted, KEYS[3], KEYS[4], ARGV[5] and ARGV[6] are left out.
-- Reply    {1, fencing token or 0, 0} taken
--          {-n, remaining ms, ticket} held by another (-1: no TTL), or free
--          but left to others for so long; n wait before us
--          error QUEUE             the queue's key holds something else; nothing was done
--
-- Atomic because whoever finds the key free gives it to the head of the queue, not to itself: with
-- two commands between, a newcomer could pass everybody who waits.
-- GET comes first: over a connection with tracking on, it is what makes the server tell us of the
-- next change to this key, and of no other.
-- The key is written after everything that may be refused: an error means that nothing was taken.
if old then return old end
local value = redis.call('GET', KEYS[1])
if not value and not ARGV[5] then
  local head = redis.call('EXISTS', KEYS[2]) == 1 and redis.pcall('ZRANGE', KEYS[2], 0, 0)
  head = head and (head[1] or head.err)
  if not head or head == ARGV[3] then
    redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
    if head then redis.pcall('ZREM', KEYS[2], head) end
    return {1, 0, 0}
  end
end
-- include modern_grant.lua
local counter, fencing, share = KEYS[3] or KEYS[1], ARGV[5] or '0', ARGV[6] or '0'
if value == ARGV[1] then
  local fence = next_fence(counter, fencing)
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  redis.pcall('ZREM', KEYS[2], ARGV[3])
  return {1, fence, 0}
end
local function unusable(refusal) -- what stands on the queue's key is no queue, or we may not use it
  if not string.find(refusal.err, 'WRONGTYPE', 1, true) then return refusal end
  return redis.error_reply('QUEUE ' .. KEYS[2] .. ' is no sorted set: something else uses the name of the queue')
end
local free = 0
if not value then free = shared(KEYS[4], share) end
if not value and free == 0 then
  local head = redis.pcall('ZRANGE', KEYS[2], 0, 0)
  if head.err then return unusable(head) end
  head = head[1]
  if not head or head == ARGV[3] then
    local fence = next_fence(counter, fencing)
    redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
    if head then redis.pcall('ZREM', KEYS[2], head) end
    return {1, fence, 0}
  end
end
-- A place at the end, unless we have one. PEXPIRE comes first: where it is refused, no queue is made.
local ticket = redis.pcall('ZSCORE', KEYS[2], ARGV[3])
if type(ticket) == 'table' then return unusable(ticket) end
local lives = redis.call('PEXPIRE', KEYS[2], ARGV[4])
if not ticket then
  local last = redis.call('ZRANGE', KEYS[2], -1, -1, 'WITHSCORES')[2] or '0'
  ticket = string.format('%.0f', after(tonumber(last)))
  redis.call('ZADD', KEYS[2], ticket, ARGV[3])
  if lives == 0 then redis.call('PEXPIRE', KEYS[2], ARGV[4]) end
end
local before = redis.call('ZRANK', KEYS[2], ARGV[3])
if value or free > 0 then
  return {-before, free > 0 and free or redis.call('PTTL', KEYS[1]), tonumber(ticket)}
end
redis.call('SET', KEYS[1], ARGV[1], 'XX', 'PX', ARGV[2]) -- sets nothing: it asks for the right that a grant needs
if not grant(KEYS[1], KEYS[2], counter, fencing, nil, ARGV[1]) then -- our turn: nobody before us listens
  local fence = next_fence(counter, fencing)
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
  return {1, fence, 0}
end
local left = redis.pcall('PTTL', KEYS[1])
local rank = redis.pcall('ZRANK', KEYS[2], ARGV[3])
return {-(tonumber(rank) or before), tonumber(left) or 1000, tonumber(ticket)}
