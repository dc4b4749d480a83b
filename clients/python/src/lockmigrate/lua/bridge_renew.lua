-- bridge_renew.lua: extends a bridge lock, repairs it after a stale DEL, or finds that it is lost.
--
-- KEYS key        the lock's key
-- KEYS guard      its guard
-- KEYS fence      the fencing counter, or the lock's key when none is wanted
-- ARGV value      the bridge value
-- ARGV ttl        the TTL in milliseconds
-- ARGV fence_ttl  the fencing counter's TTL in milliseconds, 0 when none is wanted
-- ARGV not_after  the last millisecond of the server's clock at which this command may act, 0 for none
-- Reply    {1}                 extended
--          {2}                 repaired: one of the two keys was gone and is set again
--          {-1, 0, 0, value}   displaced: the guard is ours, but the key holds that value; neither is changed
--          {0}                 lost: neither is ours; nothing changed
--          error STAGE         the command came after its bound; nothing was done
--
-- Atomic because between a look at the two keys and a write another client can take the key.
-- A displaced holder keeps its guard, unextended: no other bridge client may enter before it has left.
-- A key that is ours without a guard is safe to repair: a client that takes a lock overwrites the key. What
-- is there is extended by PEXPIRE, which a server that is out of memory allows, and first of all: after it
-- the server allows the SET of what is missing too. The counter comes last, and may be refused.
-- bounded.lua: what a script begins with that acts only within the lease of its member. It stands before each of them. They have
-- not_after: the last millisecond of the server's clock at which the command may act, '0' for none.
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
local not_after = ARGV[4]
local refusal = old_server or late(not_after)
if refusal then return refusal end
local key, guard, fence, value, ttl, fence_ttl = KEYS[1], KEYS[2], KEYS[3], ARGV[1], ARGV[2], ARGV[3]
local found = redis.pcall('MGET', key, guard)
if found[1] == value and found[2] == value then -- the usual case, before what only the other cases need
  redis.call('PEXPIRE', key, ttl)
  redis.call('PEXPIRE', guard, ttl)
  if fence_ttl ~= '0' then redis.pcall('PEXPIRE', fence, fence_ttl) end
  return {1}
end
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
local owner, seen = text(guard), text(key)
if owner == value and seen and seen ~= value then return replica(key, seen) or {-1, 0, 0, seen} end
if owner ~= value and (owner or seen ~= value) then return replica(key, seen) or {0} end
local missing = not seen and key or not owner and guard
if missing ~= key then redis.call('PEXPIRE', key, ttl) end
if missing ~= guard then redis.call('PEXPIRE', guard, ttl) end
if missing then redis.call('SET', missing, value, 'PX', ttl) end
if fence_ttl ~= '0' then redis.pcall('PEXPIRE', fence, fence_ttl) end
return {missing and 2 or 1}
