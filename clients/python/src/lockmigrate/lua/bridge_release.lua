-- bridge_release.lua: deletes key and guard, each only where it still holds the owner's value.
--
-- KEYS key       the lock's key
-- KEYS guard     its guard
-- KEYS yield     the state of the gaps for old clients, or the lock's key when none are left
-- KEYS queue     the queue of those who wait, or the lock's key when none is kept
-- KEYS [fence]   the fencing counter, for the next holder; left out when none is wanted
-- ARGV value     the bridge value
-- ARGV gap       the length of a gap for old clients in milliseconds, 0 for none: see bridge_yield.lua
-- ARGV [hand]       1: the lock may be handed to the first in the queue. Not so an acquisition that is given up before it has
--                   settled, nor a place in the queue
-- ARGV [held]       for how many whole milliseconds the lock was held, 0 when left out
-- ARGV [behind]     how many wait for the key without an entry in the queue, as far as we know; 0 when left out
-- ARGV [breath]     for how long in milliseconds the guard stays behind; 0 or left out: not at all
-- ARGV [fence_ttl]  the fencing counter's TTL in milliseconds, 0 when none is wanted
-- ARGV [entry]      our entry in the queue, to be removed; '' when we have none
-- ARGV [stood]      another one of ours; '' when there is none
-- Reply    1                   released: the key was ours to the end
--          3                   the same, and the lock is that of the first in the queue now
--          2                   released: the key was absent (a stale DEL), the guard was ours
--          {-1, 0, 0, value}   displaced: the guard was ours, the key holds that value. With hand the guard stays, else it is deleted
--          0                   nothing was ours
--
-- Atomic for three reasons. Between a GET and a DEL the TTL can end and a successor take the key. Nobody may find the key free
-- and the guard still there. A lock that is handed to the first in the queue is never free. It has no bound: giving back is
-- always allowed. A lock is handed on only while it is ours on both keys, and no gap for old clients begins. Else the first in
-- the queue is told that the key is free. If nobody hears that, the next one is told.
-- A displaced holder must be told. If this reply is lost, the next release finds the guard and tells it. So the guard stays until
-- that holder sends a release without hand.
-- A place in the queue may come back after its value was given back: by a command that was late, or with a queue that went back in
-- time. Its process is told that it is the first, has nothing, and sends this script. It takes the place out, also behind places of
-- processes that are gone, which first() passes over. Else it would be told again at once, and send this again.
-- Where GET is not allowed, nobody knows whose the keys are: the refusal is the script's error, and
-- nothing is deleted. Any other question or write may be refused: the lock is still given back. Where old clients take a key
-- that has gone for an expired one, the guard stays for a moment. An old client whose SETNX came before this release, and
-- whose GET comes after it, sends a GETSET; until that has come, no bridge client takes the key. Without that moment it would
-- overwrite the next holder's value. The guard does not hold our value in that moment: a renewal that is late, by another
-- connection, would take our guard without a key for one to be repaired. Nobody would ever give that key back.
-- The usual case is a key that nobody waits for, without a state of gaps. It was held for less than a part of a gap. It comes
-- first, and without a function: to define one costs a fifth of a command.
-- effects.lua: the part that scripts share which write after they have read the clock, or asked who listens. It stands before
-- each of them. It has their writes replicated, and not their text.
--
-- Since Redis 5 servers do that by themselves. Redis 3.2 and 4, and 6.2 with lua-replicate-commands no, do it when they are
-- asked. Redis 2.8 and 3.0 cannot do it: there a script may not write after TIME. On those, old_server is the error with which a
-- script that needs the clock refuses before it writes anything. It tells the server's version, which nobody else on the way of
-- the reply can ask for. A script that gives a lock back is refused nowhere: the DEL that it needs at least works on every server.
local old_server
if redis.replicate_commands then
  redis.replicate_commands()
elseif not redis.REDIS_VERSION_NUM then -- a server that need not be asked may drop the function
  local info = redis.pcall('INFO', 'server')
  local version = type(info) == 'string' and info:match('redis_version:(%S+)') or 'before 3.2'
  old_server = {err = 'OLDSERVER Redis ' .. version .. ' cannot run this script: it may not write after it has read the clock; 3.2 and later can'}
end
local key, guard, yield, queue, value, gap, held, breath = KEYS[1], KEYS[2], KEYS[3], KEYS[4], ARGV[1], ARGV[2], ARGV[4], ARGV[6]
local found = redis.pcall('MGET', key, guard) -- one command for the usual answer: both are ours
local mine, seen, whose = found[1] == value, value, found[2] == value
local breathes = breath and breath ~= '0'
local brief = gap == '0' or not held or 32 * held < gap + 0
local others = mine and whose and brief and redis.pcall('EXISTS', yield, queue)
local unwanted = (yield == key and 1 or 0) + (queue == key and 1 or 0)
if others == unwanted and not breathes then
  redis.call('DEL', key, guard)
  return 1
end
-- replica.lua: whether this server takes no writes: a replica, a master with too few replicas, or one that cannot save. It stands before
-- each of them that answer, without a write, that a lock is not ours. A replica may be behind its master, and a connection may outlive
-- the change. A master without replicas may have been replaced. Where a write was refused before, the answer would hide it.
--
-- replica(key, found) returns the refusal, nil where the server takes writes. found is what the key holds, nil or false where it is
-- absent. The SET sets nothing: NX where there is a key, XX where there is none. A user without the right to SET is not told.
local function replica(key, found)
  local tried = redis.pcall('SET', key, '', 'PX', 1, found and 'NX' or 'XX')
  local why = tried and tried.err or ''
  for _, word in ipairs({'READONLY ', 'NOREPLICAS ', 'MISCONF '}) do
    if string.find(why, word, 1, true) then return tried end
  end
end
local hand = ARGV[3]
local function holds(name)
  local seen = redis.pcall('GET', name)
  if type(seen) ~= 'table' then return seen == value, seen end
  if string.find(seen.err, 'WRONGTYPE', 1, true) then return false, redis.pcall('TYPE', name).ok or 'unknown' end
  return nil
end

if not mine or not whose then
  mine, seen = holds(key)
  whose = holds(guard)
  if mine == nil or whose == nil then return redis.call('GET', mine == nil and key or guard) end
  local refusal = not mine and replica(key, seen)
  if refusal then return refusal end
end

-- free() deletes what is ours.
local function free()
  if mine and whose and not breathes then
    redis.call('DEL', key, guard)
  elseif mine then
    redis.call('DEL', key)
    if whose and redis.pcall('SET', guard, 'breath', 'PX', breath).err then redis.call('DEL', guard) end
  elseif whose then
    if not seen or hand ~= '1' then redis.call('DEL', guard) end
    if seen then return {-1, 0, 0, seen} end
  end
  return mine and 1 or whose and 2 or 0
end

local yielding = gap ~= '0' and mine and whose
if (others or redis.pcall('EXISTS', yield, queue)) == (seen and unwanted or 0) and (not yielding or brief) then return free() end
-- clock.lua: the clock, and the bound of a member. It stands before each of them that need one.
--
-- The server's TIME is the only clock. It decides what is expired, for how long a client has to wait,
-- and whether a command comes too late. `now` is in milliseconds since the Unix epoch; a double holds
-- that exactly. It is read by look(), once, where it is needed.
local time, now
local function look()
  if now then return end
  time = redis.call('TIME')
  now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

-- late(bound): a member of a namespace may act only within its lease. The lease ends at `bound` on this
-- clock ('0' or nil: no bound). It is checked here: a command may be delayed on its way, or come from a
-- process that had been stopped. However late it comes, it is refused: late gives the error to answer with, false in time.
local function late(bound)
  if not bound or bound == '0' then return false end
  look()
  return now > tonumber(bound) and {err = 'STAGE the lease of this member of the namespace is over'}
end
-- fence.lua: fencing tokens, and the tickets of a queue. It stands before each of them that need one, behind clock.lua.

-- after(last) is a number above the last one, and never less than the clock in microseconds.
local function after(last)
  look()
  return math.max(last + 1, tonumber(time[1]) * 1000000 + tonumber(time[2]))
end

-- next_fence(counter, ttl): the next fencing token. It is above the clock's microseconds and above the last one, which
-- the counter holds for ttl. It is 0 when ttl is '0' or nil: then no counter is wanted. A counter that is no whole number up
-- to 9e15 is not one of ours: it counts as none. One that this user may not read raises an error: a token without it could be
-- lower than the last one.
local function next_fence(counter, ttl)
  if not ttl or ttl == '0' then return 0 end
  local last = tonumber(string.match(redis.call('MGET', counter)[1] or '', '^%d+$') or 0) -- MGET: nil for what is no string
  local n = after(last <= 9e15 and last or 0)
  redis.call('SET', counter, string.format('%.0f', n), 'PX', ttl)
  return n
end
-- queue_grant.lua: the queue of a key. Scripts that take a key, wait for it or give it back include it, at stages bridge
-- and modern. It stands before each of them, or further down. What comes before it then is what the script does most often,
-- and pays for none of this.
--
-- The queue is a sorted set beside the key. A member is one waiting process and says how it wants the lock:
-- "<claim> <until> <guarded> <channel> <token>".
--   claim    for how many milliseconds it may own the key before it has spoken
--   until    the last millisecond of the server's clock at which it may be given the key, 0 for none: a member of a
--            namespace may get a lock only within its lease
--   guarded  1 for a bridge client: the guard goes with the key, and holds the same; 0 for a token client
--   channel  where it listens; '-' for one that listens nowhere and looks at the key now and then
--   token    what the key will hold; it may hold blanks
-- The score is its ticket, drawn from the server's clock in microseconds and never twice for one key. So a late message
-- about an earlier grant cannot pass for a new one.
--
-- join(queue, ttl, entry, stood) gives the entry a place at the end, unless it has one; the entry stood, if there is one,
-- leaves it its place. Returns the ticket and how many stand before it, or nil and why not.
--
-- grant(key, queue, guard, fence, fence_ttl, by) gives the key to the first waiter that still listens and may have it. It
-- tells whether there was one. by says who gives it:
--   value    what the key holds, of a holder; nil where nobody has the key
--   guarded  the guard holds that too, and is the caller's
--   own      a token that is not passed over and given nothing: it is the caller's turn
-- A bridge client may be given a key that nobody had. It is told to look, and not that it has the key: an old client may have
-- had the key a moment ago, and then the taker has to settle.
--
-- NUMSUB tells how many connections listen: a waiter whose process is gone is passed over at once, at no cost in time. One
-- that is stopped but connected costs its claim. The message goes out before the SET. So the waiter reads it before the
-- invalidation that the SET causes, and need not ask the server again. NUMSUB is asked before anything is sent. PUBLISH counts
-- too, but only when the message is out. Both count the listeners of this server alone. Others hear as well: listeners at a
-- replica, and at a master that has become one, as connections may outlive that. A waiter cannot be passed over after a
-- message was sent: it would hear it, take the key for its own, and not have it. In a cluster every node passes the message
-- on: nobody is passed over there, nor where NUMSUB is refused, and a waiter whose process is gone costs its claim.
--
-- first(queue) tells the first waiter who listens that it is.
-- clock.lua and fence.lua come before it.
--
-- Everything but the key's own commands is called with pcall. The queue or the counter may be lost, or the right to publish: a
-- release must still free the key.
local fence, fence_ttl, entry, stood = KEYS[5], ARGV[7], ARGV[8], ARGV[9]
local function join(queue, ttl, entry, stood)
  local ticket, before = redis.pcall('ZSCORE', queue, entry), redis.pcall('ZRANK', queue, entry)
  if type(ticket) == 'table' then return nil, ticket end
  if type(before) == 'table' then return nil, before end
  local lives = redis.pcall('PEXPIRE', queue, ttl) -- before the ZADD: where it is refused, no queue is made
  if type(lives) == 'table' then return nil, lives end
  if not ticket then
    local place = stood and stood ~= '' and redis.pcall('ZSCORE', queue, stood)
    ticket = place or string.format('%.0f', after(tonumber(redis.pcall('ZRANGE', queue, -1, -1, 'WITHSCORES')[2] or 0)))
    local added = redis.pcall('ZADD', queue, ticket, entry)
    if type(added) == 'table' then return nil, added end
    if place then redis.pcall('ZREM', queue, stood) end -- after the ZADD: a queue that loses its last member loses its TTL
    if lives == 0 then redis.pcall('PEXPIRE', queue, ttl) end
    before = redis.pcall('ZRANK', queue, entry)
  end
  return tonumber(ticket), before
end

local function listens(channel)
  if channel == '-' then return true end -- it finds its token on the key when it looks
  local there = redis.pcall('PUBSUB', 'NUMSUB', channel)
  if there[2] ~= 0 then return true end
  local info = redis.pcall('INFO', 'cluster')
  if type(info) == 'string' then return string.find(info, 'cluster_enabled:1', 1, true) ~= nil end
  if string.find(info.err or '', 'is not supported', 1, true) then return false end -- a server without the section is alone
  info = redis.pcall('CLUSTER', 'INFO') -- a user without dangerous commands may ask this
  return not string.find(info.err or '', 'support disabled', 1, true)
end

local function in_time(last) return last == '0' or pcall(look) and now <= tonumber(last) end

-- guard_for(guard, token, claim, guarded, ours) makes the guard right before anybody is told: a token client's grant takes ours
-- away; a bridge client's sets one where there is none. Where there is one, it asks for the right to set ours, by a SET that
-- sets nothing. Returns whether that went well, and whether it was set. Another's guard stays: that holder has lost its key,
-- and may not know it yet.
local function guard_for(guard, token, claim, guarded, ours)
  if guarded == '0' then return not ours or type(redis.pcall('DEL', guard)) == 'number', false end
  if ours and not redis.pcall('SET', guard, token, 'NX') then return true, false end
  local set = redis.pcall('SET', guard, token, 'NX', 'PX', claim)
  local done = set and set.ok ~= nil
  return done, done
end

local function grant(key, queue, guard, fence, fence_ttl, by)
  while true do
    local head = redis.pcall('ZRANGE', queue, 0, 0, 'WITHSCORES') -- and not ZPOPMIN, which servers have since Redis 5
    if head.err or not head[1] then return false end
    local claim, last, guarded, channel, token = string.match(head[1], '^(%d+) (%d+) ([01]) (%S+) (.+)$')
    local own = token and token == by.own
    local gets = token and not own and in_time(last) and listens(channel)
    local n, set = 0, false
    if gets then
      -- A waiter that is told must get the key. So the right to set it is asked for first, by a SET that sets
      -- nothing: the key is there. (Where it is not, the caller has asked already.)
      local may
      may, n = pcall(next_fence, fence, fence_ttl)
      may = may and not (by.value and redis.pcall('SET', key, token, 'NX'))
      if may then may, set = guard_for(guard, token, claim, guarded, by.guarded) end
      if not may then return false end -- it keeps its place, and has to find the key free, and ask
    end
    if redis.pcall('ZREM', queue, head[1]) ~= 1 then
      if set then redis.pcall('DEL', guard) end
      return false
    end
    if own then return false end
    if gets then
      local word = string.format('%s %.0f ', head[2], n)
      if guarded == '1' and not by.value then word = 'head ' end
      local heard = channel == '-' and 0 or redis.pcall('PUBLISH', channel, word .. token)
      if type(heard) == 'number' then -- else refused: nothing was sent to anybody
        if guarded == '1' and not set then redis.call('SET', guard, token, 'PX', claim) end
        redis.call('SET', key, token, 'PX', claim)
        return true
      end
      if set then redis.pcall('DEL', guard) end
    end
  end
end

local function first(queue)
  for _, entry in ipairs(redis.pcall('ZRANGE', queue, 0, 9)) do
    local channel, token = string.match(entry, '^%d+ %d+ [01] (%S+) (.+)$')
    local heard = token and channel ~= '-' and redis.pcall('PUBLISH', channel, 'head ' .. token)
    if type(heard) == 'number' and heard > 0 then return end
  end
end
-- bridge_yield.lua: when a key is left free for old clients. bridge_acquire.lua and bridge_release.lua include it. It stands before each of them.
-- They have `now`, and `gap` as a number.
--
-- Old clients look now and then. Waiting bridge clients hand the key on within a millisecond, so old clients would
-- hardly find it free. So bridge holders leave gaps: the key is free for one gap, and bridge clients keep off. A gap
-- ends when an old client takes the key. It must be longer than the pause between two looks of an old client.
--
-- Is anybody there? Each look of an old client is a SETNX. A release compares the server's count of SETNX with the
-- count at the last look. It looks at most once in 3/4 of a gap. If the count stands still, no old client waits, and
-- there is no gap. The growth tells how many wait; SETNX on other keys count too. A gap that nobody used doubles the
-- time to the next one, up to 16 gaps.
-- Some clients wait without SETNX. There is one gap in 30 s whatever the count says. The count says nothing if INFO
-- is refused, or if an old client takes the key while it stood still. Then gaps come without it.
--
-- How much? Clients that only poll would leave the key free for poll/(waiting + 1) after each turn. Bridge clients
-- save that time, and give it to the old ones: each turn adds it to the credit, but never more than the turn lasted.
-- A gap begins with a credit of half a gap, and uses up the credit while the key is free. Beside that, turns are
-- counted: no gap while old clients are ahead. One more comes at once when they are a turn behind. But SETNX must have
-- been sent while the last of them had the key.
-- An old client that gives the key back may take it again at once, and again: bridge clients hear of it too late. All turns of such
-- a spell count. There are as many as SETNX was sent, less what the waiting old clients send, and no more than turns of the
-- next bridge client fit into it. Where the count says nothing these alone tell. A spell counts for 8 gaps or a second at most.
--
-- The state is a string of numbers:
--   <mode> <at> <credit> <owed> <waiting> <count> <noted> <due> <step> <seen> <ends>
-- Mode 1 is a gap, and ends is its end: modern_share.lua reads these two, so that clients of package modern keep off too.
--   mode     0 bridge clients follow one another, 1 a gap, 2 an old client has, or had, the key
--   at       when the last gap began, or the old client was seen
--   credit   milliseconds that the key may be left free
--   owed     turns that bridge clients are ahead, in hundredths
--   waiting  old clients that wait, in hundredths, 400 at most
--   count    SETNX at the last look; -1: not counted yet, -2: the count says nothing
--   noted    when that was
--   due      no gap and no look before
--   step     the time to the next look or gap where there was no use for one
--   seen     SETNX when the gap began or the old client was seen; -1: not known; mode 0: how long a spell was in milliseconds, until
--            the next release
-- All times are in milliseconds of the server's clock. A state of the future is not believed. The state may be lost
-- or wrong, and the lock must not suffer: each command here may be refused.
local form = '^(%d) (%d+) (%-?%d+) (%-?%d+) (%d+) (%-?%d+) (%d+) (%d+) (%d+) (%-?%d+) %d+$'
local keep = 45000 -- for how long the state is remembered: less than a minute

local function recall()
  local text = redis.pcall('GET', yield)
  if type(text) ~= 'string' or #text > 140 then return nil end
  local mode, at, credit, owed, waiting, count, noted, due, step, seen = string.match(text, form)
  if not mode then return nil end
  local s = {mode = mode, at = tonumber(at), credit = tonumber(credit), owed = tonumber(owed), waiting = tonumber(waiting),
    count = tonumber(count), noted = tonumber(noted), due = tonumber(due), step = tonumber(step), seen = tonumber(seen)}
  if s.at > now or s.noted > now then return nil end
  return s
end

local function remember(s, ms)
  redis.pcall('SET', yield, string.format('%s %.0f %.0f %.0f %.0f %.0f %.0f %.0f %.0f %.0f %.0f', s.mode, s.at, s.credit, s.owed,
    s.waiting, s.count, s.noted, s.due, s.step, s.seen, (s.mode == 1 or s.mode == '1') and s.at + gap or 0), 'PX', ms)
end

-- setnx() is how often the server has run SETNX, nil where it does not say.
local function setnx()
  local stats = redis.pcall('INFO', 'commandstats')
  if type(stats) ~= 'string' or not string.find(stats, 'cmdstat_', 1, true) then return nil end
  return tonumber(string.match(stats, 'cmdstat_setnx:calls=(%d+)') or 0)
end

-- earn(s, held, queued) adds what a turn has earned.
local function earn(s, held, queued)
  s.credit = math.min(s.credit + math.min(held, math.floor(500 * gap / (6 * (100 * queued + 100 + s.waiting)))), 2 * gap)
end

-- needed(s) tells whether old clients are likely to wait.
local function needed(s)
  local since = now - s.noted
  if s.count ~= -1 and 4 * since < 3 * gap then return s.waiting > 0 end
  local n = s.count ~= -2 and setnx()
  if n and (s.count == -1 or since > 25 * gap) then
    s.count, s.noted, s.waiting = n, now, 0
    return false
  end
  s.noted = now
  if not n then
    s.count, s.waiting = -2, 100
    return true
  end
  local more = n < s.count and 1 or n - s.count -- less: somebody has reset the counts
  s.count = n
  if more > 0 then
    s.waiting = math.max(1, math.min(400, math.floor((s.waiting + math.floor(500 * gap * more / (6 * since))) / 2)))
    return true
  end
  s.waiting, s.step = 0, math.min(2 * s.step, 2 * gap)
  s.due = now + s.step
  if now - s.at < 30000 then return false end
  s.waiting = 100
  return true
end

-- yields(held, queued) is for a release: whether a gap begins now. Held says for how long the lock was held, queued
-- how many wait for it.
local function yields(held, queued)
  local s = recall()
  if not s and 32 * held < gap and queued == 0 then return false end
  local lasts = (s or queued > 0) and keep or gap
  if not s then
    s = {at = now, credit = 0, owed = 0, waiting = 0, count = -1, noted = now, due = now, step = gap, seen = 0}
    if held >= keep then s.credit, s.waiting, s.count = gap, 100, -2 end -- nothing is remembered for that long
  end
  earn(s, math.max(held, 1), queued)
  if s.mode == '0' and s.seen > 0 then s.owed = math.max(s.owed, -100 * math.max(1, math.floor(s.seen / math.max(held, 1)))) end
  s.seen = 0
  s.owed = math.min(s.owed + math.floor(s.waiting / (queued + 1)), 300)
  s.mode = 0
  if now >= s.due and needed(s) and 2 * s.credit >= gap and s.owed >= 0 then
    s.mode, s.at, s.seen = 1, now, s.count ~= -2 and setnx() or -1
  end
  remember(s, lasts)
  return s.mode == 1
end

-- spell(s, sent) counts turns of old clients since s.at, when sent SETNX have come since: of 8 gaps or a second at most. It returns how long that was.
local function spell(s, sent)
  local lasted = math.min(now - s.at, math.max(8 * gap, 1000))
  local more = math.max(0, math.min(lasted, sent - math.floor(6 * s.waiting * (now - s.at) / (500 * gap))))
  s.owed = s.owed - 100 * more
  if s.count >= 0 then s.count = s.count + more end -- who takes the key does not wait for it
  return lasted
end

-- old_turn(s) notes that an old client has the key.
local function old_turn(s)
  if s.mode == '2' then return end
  local n = setnx() or -1
  if s.count >= 0 and n == s.count then s.count, s.waiting = -2, 100 end
  if s.mode == '1' then
    s.credit = math.max(s.credit - (now - s.at), -2 * gap)
    if s.seen >= 0 and n > s.seen then spell(s, n - s.seen - 1) end
  end
  s.mode, s.at, s.owed, s.due, s.step, s.seen = '2', now, s.owed - 100, 0, gap, n
  remember(s, keep)
end

-- keeps_off(s, queued) is for one who finds the key free: for how long it has to leave the key to old clients.
local function keeps_off(s, queued)
  local left = s.mode == '1' and s.at + gap - now or 0
  if left > 0 then return left end
  if s.mode == '1' then -- nobody has used it
    if s.count == -2 and s.step >= 16 * gap then s.count = -1 end
    s.credit, s.owed, s.step, s.seen = 0, 0, math.min(2 * s.step, 16 * gap), 0
    s.due = now + s.step
  elseif s.mode == '2' then
    local n = s.seen >= 0 and setnx() or -1
    earn(s, now - s.at, queued)
    local lasted = n >= 0 and spell(s, n - s.seen)
    if s.owed >= 100 and s.credit > 0 and (s.count == -2 or n < 0 or n > s.seen) then
      s.mode, s.at, s.seen = 1, now, n
      remember(s, keep)
      return gap
    end
    s.seen = lasted or spell(s, keep)
  end
  s.mode = 0
  remember(s, keep)
  return 0
end

local behind = ARGV[5]
if queue ~= key and entry then redis.pcall('ZREM', queue, entry, stood or '') end
local waiters = queue ~= key and redis.pcall('ZRANGE', queue, 0, 9) or {}
if hand == '1' and not mine and not whose then -- see above
  for _, entry in ipairs(waiters) do
    if string.match(entry, '^%d+ %d+ [01] %S+ (.+)$') == value then redis.pcall('ZREM', queue, entry) end
  end
end
local begins = false
if yielding and pcall(look) then
  gap = tonumber(gap)
  begins = yields(tonumber(held or 0), #waiters + (behind or 0))
end
if mine and whose and hand == '1' and not begins and not old_server and #waiters > 0
  and grant(key, queue, guard, fence or key, fence_ttl or '0', {value = value, guarded = true}) then return 3 end
local reply = free()
if queue ~= key then first(queue) end
return reply
