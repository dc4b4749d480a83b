-- gated_getset.lua: GETSET of a member of a namespace, refused once the member's lease is over.
--
-- KEYS[1]  the lock's key
-- KEYS[2]  its guard, which a bridge holder keeps even when a stale DEL has removed the key
-- ARGV[1]  the value
-- ARGV[2]  the last millisecond of the server's clock at which this command may act
-- Reply    the old value or nil; error HELD: the key is guarded, nothing was done; error STAGE: the command came after its bound, nothing was done
--
-- Atomic for the reason of gated_setnx.lua, and more so: a late GETSET would overwrite a token.
if old then return old end
if late(ARGV[2]) then return refuse() end
if redis.call('EXISTS', KEYS[2]) == 1 then return redis.error_reply('HELD by a bridge holder') end
return redis.call('GETSET', KEYS[1], ARGV[1])
