-- bridge_acquire.lua: takes a key that is free, or whose legacy expiry is over by more than the grace.
--
-- KEYS key          the lock's key
-- KEYS guard        its guard: holds the bridge owner's value, legacy clients never touch it
-- KEYS yield        the state of the gaps for old clients, or the lock's key when none are left
-- KEYS queue        the queue of those who wait, or the lock's key for an attempt that waits for nobody
-- KEYS [fence]      the fencing counter; left out when none is wanted
-- ARGV value        the bridge value: far-future to every legacy reader, unguessable, ours alone
-- ARGV ttl          the TTL in milliseconds, of key and guard
-- ARGV rules        "<grace> <unit> <layout> <gap>", in one argument because each costs as much as a short command: the grace in
--                   milliseconds, -1 never takes over; the unit of the dialect, ms, s, float or ns; its layout, plain, uuid,
--                   dash, colon, quoted or fst; the length of a gap for old clients in milliseconds, 0 for none
-- ARGV [not_after]  the last millisecond of the server's clock at which this command may act, 0 for none
-- ARGV [fence_ttl]  the fencing counter's TTL in milliseconds, 0 when none is wanted
--                   What follows is left out by those who have no part in the queue:
-- ARGV [entry]      our entry in it, see queue_grant.lua; '' for none
-- ARGV [queue_ttl]  the queue's TTL in milliseconds: longer than the longest time between two looks of a waiter
-- ARGV [stood]      the entry that it replaces: its bound was another one; '' for none
-- Reply    {1, fence, 0}           taken, it was free; 1 where no token was wanted
--          {2, fence, 0, value}    taken over from an expired legacy value
--          {3, fence, 0, ''}       ours already, extended: an earlier sending of this command had arrived, or the key
--                                  was given to us
--          {0, n, ms, value, t}    held; look again after ms, -1 unknown; n stand before us, t is our ticket, 0 for none
--          {0, n, ms, '', t}       free, and left to old clients for ms
--          {-1, n, ms, value, t}   foreign: a value, or a type, that is not of the dialect; held
--          {-2, n, ms, value, t}   a ghost: an expired legacy value, but takeovers are not allowed
--          error STAGE             the command came after its bound; nothing was done
--
-- Atomic because of three races: between reading an expired value and replacing it another client can
-- take the key (a GETSET would then clobber it); key and guard must never be taken by two clients; and
-- the fencing token must be drawn by the holder, in the order of holding.
-- When a free key is left to old clients is said in bridge_yield.lua.
-- A client that finds the key free gives it to the first in the queue, not to itself. The client that finds an expired legacy
-- value takes it over: the taker has to settle. The queue decides who gets a lock that nobody has, or that its holder gives
-- away. So no entry in it, however old, can make two holders.
-- A key with a TTL is never taken over, whatever it holds: only token holders set one.
-- A lock that was given to us, and that a redis-py loser without a lease overwrote before we came for it, is taken back: the guard is ours as
-- long as the key was, nobody holds that one value, and it never expires. So nothing else would ever free the key: see Dialect.Leftover.
-- The key is written last, the guard before it, and all else before these two: nothing is taken when one of
-- the commands is refused. A guard whose key is refused is set once more, to end at once; the right to that
-- is proved by then.
-- The usual case comes first: a key that is free, that nobody waits for and that has no state of gaps. It takes few commands,
-- as each costs more than its Lua, and no function: to define one costs a fifth of a command. So it has the lines of take() and late()
-- once more. What only the other cases need is defined after it.
-- include effects.lua
if old_server then return old_server end
local free = not entry and redis.call('EXISTS', key, guard, yield, queue) == 0
if free and (not fence_ttl or fence_ttl == '0') then
  local clock = not_after and not_after ~= '0' and redis.call('TIME')
  if not clock or clock[1] * 1000 + clock[2] / 1000 < not_after + 1 then -- as late() below
    redis.call('SET', guard, value, 'PX', ttl)
    local set = redis.pcall('SET', key, value, 'PX', ttl)
    if set.err then redis.call('SET', guard, value, 'PX', 1) return set end
    return 1
  end
end
local function take(reply)
  redis.call('SET', guard, value, 'PX', ttl)
  local set = redis.pcall('SET', key, value, 'PX', ttl)
  if set.err then redis.call('SET', guard, value, 'PX', 1) return set end
  return reply
end
-- include clock.lua
local refusal = late(not_after)
if refusal then return refusal end
-- include fence.lua
if free then return take({1, next_fence(fence, fence_ttl), 0}) end
-- include bridge_shared.lua
look()
queue = queue ~= key and queue
local grace, unit, layout, gap = string.match(rules, '^(%S+) (%S+) (%S+) (%S+)$')
gap = tonumber(gap)
local waits = queue and entry and entry ~= ''
-- include bridge_yield.lua
-- include queue_grant.lua

local found = redis.call('MGET', key, guard) -- nil also for what is no string
local none = not found[1] and not found[2] and redis.call('EXISTS', key, guard) == 0
local owner = found[2]
if not owner and not none then owner = text(guard) end
local function held(code, wait, seen)
  if owner == value then redis.pcall('DEL', guard) end -- of an earlier sending; we leave nothing behind
  local ticket, before
  if waits then ticket, before = join(queue, queue_ttl, entry, stood) end -- what has become of the queue must not matter
  if waits and not ticket and string.find(before.err, 'READONLY', 1, true) then return before end -- but it is at another server
  return {code, ticket and before or 0, wait, seen, ticket or 0}
end
if owner and owner ~= value then
  return held(0, redis.call('PTTL', guard), owner)
end

local code = 1
local seen, kind = found[1], 'string'
if not seen and not none then seen, kind = text(key) end
local state = gap > 0 and recall()
local ours = owner == value and (not seen or unit == 'float' and seen == '2147483649.0' and redis.call('PTTL', key) < 0)
if seen == value or ours then
  code = 3
elseif seen then
  local left = redis.call('PTTL', key)
  if kind ~= 'string' then return held(-1, left, kind) end
  if left >= 0 then
    -- What is no number of ours (5e18 to 9.2e18), without a guard: another library's, whose clients only poll. It counts as an old turn.
    if state and not owner and (#seen ~= 19 or not string.find(seen, '^[5-9]%d+$')) then old_turn(state) end
    return held(0, left, seen)
  end
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

if queue and code == 1 then
  local head = redis.pcall('ZRANGE', queue, 0, 0)[1]
  if head and head ~= entry and head ~= stood then
    if waits then join(queue, queue_ttl, entry, stood) end
    redis.call('SET', key, value, 'XX') -- sets nothing: it asks for the right that a grant needs
    if grant(key, queue, guard, fence, fence_ttl, {own = value}) then
      return held(0, redis.pcall('PTTL', key), redis.pcall('GET', key))
    end
  end
end
if waits then redis.pcall('ZREM', queue, entry, stood or '') end
return take({code, next_fence(fence, fence_ttl), 0, code == 2 and seen or ''}) -- the token is drawn first
