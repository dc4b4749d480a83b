-- stage_delete.lua: removes the record of a namespace that has no members.
--
-- KEYS record   the record
-- KEYS members  the members
-- ARGV seen     the epoch that the caller has seen: compare-and-set
-- ARGV execute  1 removes it, 0 only tells what would happen
-- Reply    {1, epoch, stage} removed, or free to; {0, epoch, stage, ...} blocked, as stage_move.lua says, why:
--          lives, silent; {-1, epoch, stage} the epoch is another; {-2, 0, 0} there is no record
--
-- Atomic because no member may join between the question and the removal.
-- include effects.lua
-- include stage_shared.lua
if old_server then return old_server end
-- include stage_version.lua
-- include stage_epoch.lua
only_if_alone(blocked, members)
if #blocked > 3 then return blocked end
if execute == '1' then redis.call('DEL', record, members) end
return {1, epoch, stage}
