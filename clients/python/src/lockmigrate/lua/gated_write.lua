-- gated_write.lua: SETNX, GETSET, or the SET of a takeover by WATCH and MULTI, of a member of a namespace: refused once the member's
-- lease is over.
--
-- KEYS key        the lock's key; for SET it is watched by the caller
-- KEYS guard      its guard, which a bridge holder keeps even when a stale DEL has removed the key
-- ARGV command    SETNX, GETSET or SET
-- ARGV value      the value
-- ARGV not_after  the last millisecond of the server's clock at which this command may act
-- Reply    as of the command itself. SETNX: 1 set, 0 the key or its guard exists. GETSET: the old value or nil. SET: OK.
--          error HELD: the key is guarded, nothing was done; error STAGE: the command came after its bound, nothing was done
--
-- Atomic because the member may be stopped, or its command delayed, between a look at its lease and
-- the command: the namespace may have moved on to a stage in which nobody expects this value. A late GETSET would overwrite a token.
-- On a key that exists SETNX changes nothing. It runs there even where the guard forbids the key: bridge holders count it,
-- see bridge_yield.lua.
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
local key, guard, command, value = KEYS[1], KEYS[2], ARGV[1], ARGV[2]
local guarded = redis.call('EXISTS', guard) == 1
if command == 'SETNX' then
  if guarded and redis.call('EXISTS', key) == 0 then return 0 end
  return redis.call('SETNX', key, value)
end
if guarded then return redis.error_reply('HELD by a bridge holder') end
if command == 'GETSET' then return redis.call('GETSET', key, value) end
return redis.call('SET', key, value)
