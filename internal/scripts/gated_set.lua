-- gated_set.lua: the SET of a takeover by WATCH and MULTI, refused once the member's lease is over.
--
-- KEYS[1]  the lock's key, watched by the caller
-- KEYS[2]  its guard, which a bridge holder keeps even when a stale DEL has removed the key
-- ARGV[1]  the value
-- ARGV[2]  the last millisecond of the server's clock at which this command may act
-- Reply    OK; error HELD: the key is guarded, nothing was done; error STAGE: the command came after its bound, nothing was done
--
-- Atomic for the reason of gated_setnx.lua.
if old then return old end
if late(ARGV[2]) then return refuse() end
if redis.call('EXISTS', KEYS[2]) == 1 then return redis.error_reply('HELD by a bridge holder') end
return redis.call('SET', KEYS[1], ARGV[1])
