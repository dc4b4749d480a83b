-- gated_getset.lua: GETSET of a member of a namespace, refused once the member's lease is over.
--
-- KEYS key        the lock's key
-- KEYS guard      its guard, which a bridge holder keeps even when a stale DEL has removed the key
-- ARGV value      the value
-- ARGV not_after  the last millisecond of the server's clock at which this command may act
-- Reply    the old value or nil; error HELD: the key is guarded, nothing was done; error STAGE: the command came after its bound, nothing was done
--
-- Atomic for the reason of gated_setnx.lua, and more so: a late GETSET would overwrite a token.
-- include effects.lua
-- include clock.lua
-- include bridge_shared.lua
if old_server then return old_server end
if late(not_after) then return refuse() end
if redis.call('EXISTS', guard) == 1 then return redis.error_reply('HELD by a bridge holder') end
return redis.call('GETSET', key, value)
