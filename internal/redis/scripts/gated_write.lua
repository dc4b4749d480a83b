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
-- include bounded.lua
local guarded = redis.call('EXISTS', guard) == 1
if command == 'SETNX' then
  if guarded and redis.call('EXISTS', key) == 0 then return 0 end
  return redis.call('SETNX', key, value)
end
if guarded then return redis.error_reply('HELD by a bridge holder') end
if command == 'GETSET' then return redis.call('GETSET', key, value) end
return redis.call('SET', key, value)
