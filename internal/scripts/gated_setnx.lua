-- gated_setnx.lua: SETNX of a member of a namespace, refused once the member's lease is over.
--
-- KEYS key        the lock's key
-- KEYS guard      its guard, which a bridge holder keeps even when a stale DEL has removed the key
-- ARGV value      the value
-- ARGV not_after  the last millisecond of the server's clock at which this command may act
-- Reply    1 set, 0 the key or its guard exists; error STAGE: the command came after its bound, nothing was done
--
-- Atomic because the member may be stopped, or its command delayed, between a look at its lease and
-- the SETNX: the namespace may have moved on to a stage in which nobody expects this value.
-- On a key that exists SETNX changes nothing. It runs there even where the guard forbids the key: bridge holders count it,
-- see bridge_yield.lua.
-- include effects.lua
-- include clock.lua
-- include bridge_shared.lua
if old_server then return old_server end
if late(not_after) then return refuse() end
if redis.call('EXISTS', guard) == 1 and redis.call('EXISTS', key) == 0 then return 0 end
return redis.call('SETNX', key, value)
