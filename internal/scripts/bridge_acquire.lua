-- bridge_acquire.lua: takes a key that is free, or whose legacy expiry is over by more than the grace.
--
-- KEYS key          the lock's key
-- KEYS guard        its guard: holds the bridge owner's value, legacy clients never touch it
-- KEYS fence        the fencing counter, or the lock's key when none is wanted
-- KEYS streak       the streak of bridge holders, or the lock's key when none is kept
-- KEYS queue        the queue of those who wait, or the lock's key when none is kept
-- ARGV value        the bridge value: far-future to every legacy reader, unguessable, ours alone
-- ARGV ttl          the TTL in milliseconds, of key and guard
-- ARGV grace        the grace in milliseconds; -1 never takes over
-- ARGV unit         the unit of the dialect: ms, s, float or ns
-- ARGV layout       its layout: plain, uuid, dash, colon, quoted or fst
-- ARGV fence_ttl    the fencing counter's TTL in milliseconds, 0 when none is wanted
-- ARGV not_after    the last millisecond of the server's clock at which this command may act, 0 for none
-- ARGV yield_after  how long bridge holders may follow one another before they leave a gap, in milliseconds, 0
--                   keeps no streak
-- ARGV gap          the length of the gap: more than the pause between two looks of a legacy client
-- ARGV longer       by how much longer they may where gap after gap is of no use to anybody
-- ARGV patience     for how long a key that is free is left to the first in the queue, in milliseconds; 0: not at
--                   all, for an attempt that does not wait
--                   What follows is left out by those who have no part in the queue:
-- ARGV [entry]      our entry in it: "<name> <channel>", '' for none
-- ARGV [queue_ttl]  the queue's TTL in milliseconds: longer than the longest time between two looks of a waiter
-- ARGV [passed]     the entry of a first one that was left that time already, '' for none
-- ARGV [quiet]      1: we have heard of every change of the key in the gap that is over now, and there was none
-- Reply    {1, fence, due}         taken, it was free; due is 1 if a gap may follow
--          {2, fence, due, value}  taken over from an expired legacy value
--          {3, fence, due}         ours already, extended: an earlier sending of this command had arrived
--          {0, n, ms, value}       held; look again after ms, -1 unknown; n: 1 if somebody stands before us
--          {0, 2, ms, entry}       free, or to be taken over, and it is the turn of that entry for ms
--          {-1, n, ms, value}      foreign: a value, or a type, that is not of the dialect; held
--          {-2, n, ms, value}      a ghost: an expired legacy value, but takeovers are not allowed
--          error STAGE             the command came after its bound; nothing was done
--
-- Atomic because of three races: between reading an expired value and replacing it another client can
-- take the key (a GETSET would then clobber it); key and guard must never be taken by two clients; and
-- the fencing token must be drawn by the holder, in the order of holding.
-- Legacy clients look ten times a second, bridge clients are woken within a millisecond of a release:
-- under contention the old ones would starve. So the streak, the time for which bridge holders have
-- followed one another without a gap, is bounded: after it, a key that was released is left to legacy
-- clients for the length of one gap.
-- The streak is "<since> <ends>": since when they have followed one another, and until when that goes on
-- if nobody takes the key. It begins with a holder, so that it is there while the lock is held: in a
-- cluster's slot that is being moved, a script runs only if all its keys are. Whoever takes the key makes
-- sure that it ends no sooner than a gap and an eighth from then: who has the lock for less than that
-- eighth need not write it at its release, unless a gap may follow, which is to be of the right length.
-- A gap in which nobody has touched the key was quiet. After a quiet one the next streak may last twice as
-- long as the one before, up to a bound: since lies ahead by as much, and has a zero before it for each quiet
-- gap in a row. So a member of an older version, which knows of no zeros, keeps to the longer streak all
-- the same, and the first gap after a holder of its own is that of the shortest. No streak gets longer once
-- it has begun. A since that lies ahead by more than our own options allow is not believed.
-- Whoever waits stands in the queue, a sorted set whose scores are the tickets, drawn from the server's
-- clock, and of those who wait only the first may take a key that may be taken. The queue decides nothing but who is refused:
-- no entry in it, however old, can make two holders. So it needs no clean-up: a first one that is gone, or
-- stopped, has its turn for a moment after somebody has found the key free, and loses its place.
-- A key with a TTL is never taken over, whatever it holds: only token holders set one.
-- The key is written last, the guard before it, and all else before these two: nothing is taken when one of
-- the commands is refused. A guard whose key is refused is set once more, to end at once; the right to that
-- is proved by then.
-- The usual case, a key that is free and that nobody waits for, comes first and takes few commands, each of
-- which costs more than its Lua; what only the others need is defined after it. Who has a part in the queue
-- is never of the usual case.
-- include effects.lua
if old_server then return old_server end
local free = not entry and redis.call('EXISTS', key, guard, patience == '0' and key or queue) == 0
local found -- counter and streak, and what is on key and guard; nil also for what is no string
if free then
  found = redis.call('MGET', fence, streak)
else
  found = redis.call('MGET', fence, streak, key, guard)
end
local clock = redis.call('TIME')
local seconds, micros = tonumber(clock[1]), tonumber(clock[2])
local moment = seconds * 1000 + math.floor(micros / 1000)
local since, lasted, lasts, follows -- the streak: since as it is written, and whether it goes on
if found[2] and yield_after ~= '0' then
  local ends
  since, ends = string.match(found[2], '^(%d+) (%d+)$')
  if since then
    lasted, lasts = moment - since, ends - moment
    follows = lasts > 0 and -lasted <= tonumber(longer)
  end
end
if free and (not_after == '0' or moment <= tonumber(not_after)) and not (follows and lasted > tonumber(yield_after)) then
  local due = yield_after ~= '0' and (follows and lasted or 0) > yield_after - gap / 8 and 1 or 0
  if yield_after ~= '0' and (not follows or lasts < gap * 1.125) then
    if not follows then since = string.format('%.0f', moment) end
    redis.call('SET', streak, since .. string.format(' %.0f', moment + gap * 1.25), 'PX', ttl + gap * 2)
  end
  local n = 0
  if fence_ttl ~= '0' then
    local last = tonumber(string.match(found[1] or '', '^%d+$') or 0)
    if last > 9e15 then last = 0 end
    n = math.max(last + 1, seconds * 1000000 + micros)
    redis.call('SET', fence, string.format('%.0f', n), 'PX', fence_ttl)
  end
  redis.call('SET', guard, value, 'PX', ttl)
  local set = redis.pcall('SET', key, value, 'PX', ttl)
  if set.err then redis.call('SET', guard, value, 'PX', 1) return set end
  return {1, n, due}
end
-- include bridge_shared.lua
time, now = clock, moment
if late(not_after) then return refuse() end
if queue == key then queue = nil end
entry = entry or ''

-- line_up() gives us a place at the end of the queue, unless we have one, and tells whether somebody stands
-- before us. What has become of the queue's key must not matter to the lock.
local function line_up()
  if not queue or entry == '' then return 0 end
  local lives = redis.pcall('PEXPIRE', queue, queue_ttl) -- first: where it is refused, no queue is made
  if type(lives) == 'number' and not tonumber(redis.pcall('ZSCORE', queue, entry)) then
    local last = redis.pcall('ZRANGE', queue, -1, -1, 'WITHSCORES')[2] or '0'
    local ticket = math.max(last + 1, seconds * 1000000 + micros)
    redis.pcall('ZADD', queue, string.format('%.0f', ticket), entry)
    if lives == 0 then redis.pcall('PEXPIRE', queue, queue_ttl) end
  end
  return redis.pcall('ZRANGE', queue, 0, 0)[1] == entry and 0 or 1
end

local none = free or not found[3] and not found[4] and redis.call('EXISTS', key, guard) == 0
local owner = found[4]
if not owner and not none then owner = text(guard) end
local function held(code, wait, seen)
  if owner == value then redis.pcall('DEL', guard) end -- of an earlier sending; we leave nothing behind
  return {code, line_up(), wait, seen}
end
if owner and owner ~= value then
  return held(0, redis.call('PTTL', guard), owner)
end

local code = 1
local seen, kind = found[3], 'string'
if not seen and not none then seen, kind = text(key) end
if seen == value or owner == value and not seen then
  code = 3
elseif seen then
  local left = redis.call('PTTL', key)
  if kind ~= 'string' then return held(-1, left, kind) end
  if left >= 0 then return held(0, left, seen) end
  local due = expiry(seen, unit, layout)
  if not due then return held(-1, -1, seen) end
  grace = tonumber(grace)
  due = due + math.max(grace, 0)
  if now <= due then
    if since then redis.pcall('DEL', streak) end -- a legacy client has its turn: the streak is over
    return held(0, due - now + 1, seen)
  end
  if grace < 0 then return held(-2, -1, seen) end
  code = 2
end

if follows and code == 1 and lasted > tonumber(yield_after) then
  return held(0, lasts, '')
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
if yield_after ~= '0' and (not follows or code == 2 or lasts < gap * 1.125) then
  if not follows or code == 2 then -- a new one; what was taken over is a legacy client's
    lasted = 0
    local zeros, most = '', tonumber(longer)
    if since and code == 1 and quiet == '1' then
      zeros = string.match(since, '^0*')
      if yield_after * (2 ^ #zeros - 1) < most then zeros = zeros .. '0' end
    end
    since = zeros .. string.format('%.0f', now + math.min(yield_after * (2 ^ #zeros - 1), most))
  end
  redis.call('SET', streak, since .. string.format(' %.0f', now + gap * 1.25), 'PX', ttl + gap * 2)
end
local due = yield_after ~= '0' and lasted > yield_after - gap / 8 and 1 or 0
local token = next_fence(fence, fence_ttl, found[1])
redis.call('SET', guard, value, 'PX', ttl)
local set = redis.pcall('SET', key, value, 'PX', ttl)
if set.err then redis.call('SET', guard, value, 'PX', 1) return set end
return {code, token, due, code == 2 and seen or ''}
