-- gated_set.lua: the SET of a takeover by WATCH and MULTI, refused once the member's lease is over.
--
-- KEYS key        the lock's key, watched by the caller
-- KEYS guard      its guard, which a bridge holder keeps even when a stale DEL has removed the key
-- ARGV value      the value
-- ARGV not_after  the last millisecond of the server's clock at which this command may act
-- Reply    OK; error HELD: the key is guarded, nothing was done; error STAGE: the command came after its bound, nothing was done
--
-- Atomic for the reason of gated_setnx.lua.
-- include effects.lua
-- include clock.lua
-- include bridge_shared.lua
if old_server then return old_server end
if late(not_after) then return refuse() end
if redis.call('EXISTS', guard) == 1 then return redis.error_reply('HELD by a bridge holder') end
return redis.call('SET', key, value)
