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
-- include effects.lua
-- include clock.lua
-- include bridge_shared.lua
if old_server then return old_server end
if late(not_after) then return refuse() end
-- include compare_set.lua
