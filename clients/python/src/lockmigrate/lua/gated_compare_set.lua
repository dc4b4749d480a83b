-- gated_compare_set.lua: compare_set.lua of a member of a namespace, refused once its lease is over.
--
-- KEYS key        the lock's key
-- ARGV old        the value that it must hold
-- ARGV value      the value to put in its place
-- ARGV not_after  the last millisecond of the server's clock at which this command may act
-- Reply    1 replaced, 0 the key is absent, holds something else, or is not a string; error STAGE: the
--          command came after its bound, nothing was done
--
-- Atomic because a successor may have taken the lock over. And a member that the namespace has given
-- up waiting for must not renew the lease of a legacy lock.
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
local not_after = ARGV[3]
local refusal = old_server or late(not_after)
if refusal then return refusal end
-- compare_set.lua: replaces a key's value only while it holds a given one; a TTL on the key stays.
--
-- KEYS key    the lock's key
-- ARGV old    the value that it must hold
-- ARGV value  the value to put in its place
-- Reply    1 replaced, 0 the key is absent, holds something else, or is not a string
--
-- Atomic because a successor may have taken the lock over since we last looked: a blind SET or GETSET
-- would overwrite its lease (the hazard "clobber").
-- A server that is out of memory refuses a SET. It does not after a PEXPIRE or a PERSIST in the same script. These
-- change nothing here and may be refused. So a holder keeps its lock there.
-- A GET that is refused tells nothing about the key: the refusal is the script's error. Only WRONGTYPE says that the
-- key is not ours. The second GET raises the error with its line.
-- replica.lua: whether this server takes no writes: a replica, a master with too few replicas, or one that cannot save. It stands before
-- each of them that answer, without a write, that a lock is not ours. A replica may be behind its master, and a connection may outlive
-- the change. A master without replicas may have been replaced. Where a write was refused before, the answer would hide it.
--
-- replica(key, found) returns the refusal, nil where the server takes writes. found is what the key holds, nil or false where it is
-- absent. The SET sets nothing: NX where there is a key, XX where there is none. A user without the right to SET is not told.
local key = KEYS[1]
local function replica(key, found)
  local tried = redis.pcall('SET', key, '', 'PX', 1, found and 'NX' or 'XX')
  local why = tried and tried.err or ''
  for _, word in ipairs({'READONLY ', 'NOREPLICAS ', 'MISCONF '}) do
    if string.find(why, word, 1, true) then return tried end
  end
end
local old, value = ARGV[1], ARGV[2]
local found = redis.pcall('GET', key)
if type(found) == 'table' and not string.find(found.err, 'WRONGTYPE', 1, true) then return redis.call('GET', key) end
if found ~= old then return replica(key, found) or 0 end
local ttl = redis.call('PTTL', key)
if ttl >= 0 then -- 0 is less than a millisecond, not none
  redis.pcall('PEXPIRE', key, math.max(ttl, 1))
  redis.call('SET', key, value, 'PX', math.max(ttl, 1))
else
  redis.pcall('PERSIST', key)
  redis.call('SET', key, value)
end
return 1
