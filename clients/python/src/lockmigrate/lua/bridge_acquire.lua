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
local key, guard, yield, queue, value, ttl, not_after, fence_ttl, entry = KEYS[1], KEYS[2], KEYS[3], KEYS[4], ARGV[1], ARGV[2], ARGV[4], ARGV[5], ARGV[6]
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
local refusal = late(not_after)
if refusal then return refusal end
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
local fence = KEYS[5]
if free then return take({1, next_fence(fence, fence_ttl), 0}) end
-- bridge_shared.lua: the part that the bridge's scripts share. It stands before each of them.
-- In the middle of one, where it says so: what comes before that is the usual case.

-- expiry(value, unit, layout): the instant in milliseconds that a legacy value stands for, or nil when
-- it is no expiry of this dialect. Only what the dialect's clients really write is read: what a lenient
-- reader would make of a sign, a blank or a prefix is never taken over. A number without a TTL may
-- stand for a time before 2001 or more than a century ahead. Then it is in another unit, a thread id, a
-- flag or a bridge value that lost its TTL: nil.
local function expiry(value, unit, layout)
  local digits = value
  if layout == 'uuid' then
    digits = string.match(value, '^%x+%-%x+%-%x+%-%x+%-%x+:(%d+)$')
  elseif layout == 'dash' then
    digits = string.match(value, '^(%d+)%-[^%-]+%-.+$')
  elseif layout == 'colon' then
    digits = string.match(value, '^(%d+):.+$')
  elseif layout == 'quoted' then
    digits = string.match(value, '^"(%d+)"$') or value
  elseif layout == 'fst' then -- a Java Long: f6 82 and eight bytes, the lowest first
    if #value ~= 10 or string.sub(value, 1, 2) ~= '\246\130' then return nil end
    local n = 0
    for i = 10, 3, -1 do n = n * 256 + string.byte(value, i) end
    digits = string.format('%.0f', n)
  end
  if not digits or #digits > 32 then return nil end
  if not string.match(digits, unit == 'float' and '^%d+%.?%d*$' or '^%d+$') then return nil end
  local ends = tonumber(digits)
  if not ends then return nil end
  if unit == 's' then
    ends = (ends + 1) * 1000 -- a reader calls it over when its own count of seconds has passed it
  elseif unit == 'float' then
    ends = math.ceil(ends * 1000)
  elseif unit == 'ns' then
    ends = math.ceil(ends / 1000000)
  end
  if ends < 1e12 or ends > now + 3.2e12 then return nil end
  return ends
end

-- text(key): what a key holds: its string, or its type's name when it is no string, and nil when it is
-- absent. A value of another type must not raise an error: to us it is a holder that we cannot read.
local function text(key)
  local value = redis.pcall('GET', key)
  if not value then return nil, 'none' end
  if type(value) == 'string' then return value, 'string' end
  if not string.find(value.err, 'WRONGTYPE', 1, true) then return redis.call('GET', key) end -- refused: the script is over
  local kind = redis.pcall('TYPE', key).ok or 'no string'
  return kind, kind
end
local rules = ARGV[3]
look()
queue = queue ~= key and queue
local grace, unit, layout, gap = string.match(rules, '^(%S+) (%S+) (%S+) (%S+)$')
gap = tonumber(gap)
local waits = queue and entry and entry ~= ''
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
local stood = ARGV[8]
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
local queue_ttl = ARGV[7]

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
