-- bridge_acquire.lua: takes a key that is free, or whose legacy expiry is over by more than the grace.
--
-- KEYS key          the lock's key
-- KEYS guard        its guard: holds the bridge owner's value, legacy clients never touch it
-- KEYS yield        the state of the gaps for old clients, or the lock's key when none are left
-- KEYS queue        the queue of those who wait, or the lock's key when none is kept, and for an attempt that does not wait
-- KEYS [fence]      the fencing counter; left out when none is wanted
-- ARGV value        the bridge value: far-future to every legacy reader, unguessable, ours alone
-- ARGV ttl          the TTL in milliseconds, of key and guard
-- ARGV rules        "<grace> <unit> <layout> <gap> <patience>", in one argument because each costs as much as a short command:
--                   the grace in milliseconds, -1 never takes over; the unit of the dialect, ms, s, float or ns; its layout,
--                   plain, uuid, dash, colon, quoted or fst; the length of a gap for old clients in milliseconds, 0 for none;
--                   for how many milliseconds a key that is free is left to the first in the queue
-- ARGV [not_after]  the last millisecond of the server's clock at which this command may act, 0 for none
-- ARGV [fence_ttl]  the fencing counter's TTL in milliseconds, 0 when none is wanted
--                   What follows is left out by those who have no part in the queue:
-- ARGV [entry]      our entry in it: "<name> <channel>", '' for none
-- ARGV [queue_ttl]  the queue's TTL in milliseconds: longer than the longest time between two looks of a waiter
-- ARGV [passed]     the entry of a first one that was left that time already, '' for none
-- Reply    {1, fence, 0}           taken, it was free; 1 where neither bound nor token was wanted
--          {2, fence, 0, value}    taken over from an expired legacy value
--          {3, fence, 0, ''}       ours already, extended: an earlier sending of this command had arrived
--          {0, n, ms, value}       held; look again after ms, -1 unknown; n: 1 if somebody stands before us
--          {0, n, ms, ''}          free, and left to old clients for ms
--          {0, 2, ms, entry}       free, or to be taken over, and it is the turn of that entry for ms
--          {-1, n, ms, value}      foreign: a value, or a type, that is not of the dialect; held
--          {-2, n, ms, value}      a ghost: an expired legacy value, but takeovers are not allowed
--          error STAGE             the command came after its bound; nothing was done
--
-- Atomic because of three races: between reading an expired value and replacing it another client can
-- take the key (a GETSET would then clobber it); key and guard must never be taken by two clients; and
-- the fencing token must be drawn by the holder, in the order of holding.
-- When a free key is left to old clients is said in bridge_yield.lua.
-- Whoever waits stands in the queue, a sorted set whose scores are the tickets, drawn from the server's
-- clock, and of those who wait only the first may take a key that may be taken. The queue decides nothing but who is refused:
-- no entry in it, however old, can make two holders. So it needs no clean-up: a first one that is gone, or
-- stopped, has its turn for a moment after somebody has found the key free, and loses its place.
-- A key with a TTL is never taken over, whatever it holds: only token holders set one.
-- The key is written last, the guard before it, and all else before these two: nothing is taken when one of
-- the commands is refused. A guard whose key is refused is set once more, to end at once; the right to that
-- is proved by then.
-- The usual case, a key that is free, that nobody waits for and that has no state of gaps, comes first and takes few
-- commands, each of which costs more than its Lua. What only the others need is defined after it.
-- include effects.lua
if old_server then return old_server end
local free = not entry and redis.call('EXISTS', key, guard, yield, queue) == 0
local function take()
  redis.call('SET', guard, value, 'PX', ttl)
  local set = redis.pcall('SET', key, value, 'PX', ttl)
  if set.err then redis.call('SET', guard, value, 'PX', 1) return set end
end
if free and not not_after then return take() or 1 end -- no bound, no token
-- include bridge_clock.lua
local punctual = not late(not_after)
local function win(code, seen)
  local token = next_fence(fence, fence_ttl)
  return take() or {code, token, 0, seen}
end
if free and punctual then return win(1) end
-- include bridge_shared.lua
if not punctual then return refuse() end
look()
queue, entry = queue ~= key and queue, entry or ''
local grace, unit, layout, gap, patience = string.match(rules, '^(%S+) (%S+) (%S+) (%S+) (%S+)$')
gap = tonumber(gap)
-- include bridge_yield.lua

-- line_up() gives us a place at the end of the queue, unless we have one, and tells whether somebody stands
-- before us. What has become of the queue's key must not matter to the lock.
local function line_up()
  if not queue or entry == '' then return 0 end
  local lives = redis.pcall('PEXPIRE', queue, queue_ttl) -- first: where it is refused, no queue is made
  if type(lives) == 'number' and not tonumber(redis.pcall('ZSCORE', queue, entry)) then
    local last = redis.pcall('ZRANGE', queue, -1, -1, 'WITHSCORES')[2] or '0'
    local ticket = math.max(last + 1, tonumber(time[1]) * 1000000 + tonumber(time[2]))
    redis.pcall('ZADD', queue, string.format('%.0f', ticket), entry)
    if lives == 0 then redis.pcall('PEXPIRE', queue, queue_ttl) end
  end
  return redis.pcall('ZRANGE', queue, 0, 0)[1] == entry and 0 or 1
end

local found = redis.call('MGET', key, guard) -- nil also for what is no string
local none = not found[1] and not found[2] and redis.call('EXISTS', key, guard) == 0
local owner = found[2]
if not owner and not none then owner = text(guard) end
local function held(code, wait, seen)
  if owner == value then redis.pcall('DEL', guard) end -- of an earlier sending; we leave nothing behind
  return {code, line_up(), wait, seen}
end
if owner and owner ~= value then
  return held(0, redis.call('PTTL', guard), owner)
end

local code = 1
local seen, kind = found[1], 'string'
if not seen and not none then seen, kind = text(key) end
local state = gap > 0 and recall()
if seen == value or owner == value and not seen then
  code = 3
elseif seen then
  local left = redis.call('PTTL', key)
  if kind ~= 'string' then return held(-1, left, kind) end
  if left >= 0 then return held(0, left, seen) end
  local due = expiry(seen, unit, layout)
  if not due then return held(-1, -1, seen) end
  if state then old_turn(state) end
  grace = tonumber(grace)
  due = due + math.max(grace, 0)
  if now <= due then return held(0, due - now + 1, seen) end
  if grace < 0 then return held(-2, -1, seen) end
  code = 2
elseif state then
  local left = keeps_off(state, queue and #redis.pcall('ZRANGE', queue, 0, 9) or 0)
  if left > 0 then return held(0, left, '') end
end

while queue and code ~= 3 and patience ~= '0' do
  local first = redis.pcall('ZRANGE', queue, 0, 0)
  if not first[1] or first[1] == entry then break end
  if first[1] == passed then
    if redis.pcall('ZREM', queue, first[1]) ~= 1 then break end -- refused: else this would go on for ever
  else
    local name, channel = string.match(first[1], '^(%S+) (.+)$')
    if name then redis.pcall('PUBLISH', channel, name .. ' head') end
    held(0, 0, '')
    return {0, 2, tonumber(patience), first[1]}
  end
end
if queue and entry ~= '' then redis.pcall('ZREM', queue, entry) end
return win(code, code == 2 and seen or '')
