-- gated_setnx.lua: SETNX of a member of a namespace, refused once the member's lease is over.
--
-- KEYS[1]  the lock's key
-- KEYS[2]  its guard, which a bridge holder keeps even when a stale DEL has removed the key
-- ARGV[1]  the value
-- ARGV[2]  the last millisecond of the server's clock at which this command may act
-- Reply    1 set, 0 the key or its guard exists; error STAGE: the command came after its bound, nothing was done
--
-- Atomic because the member may be stopped, or its command delayed, between a look at its lease and
-- the SETNX: the namespace may have moved on to a stage in which nobody expects this value.
if old then return old end
if late(ARGV[2]) then return refuse() end
if redis.call('EXISTS', KEYS[2]) == 1 then return 0 end
return redis.call('SETNX', KEYS[1], ARGV[1])
