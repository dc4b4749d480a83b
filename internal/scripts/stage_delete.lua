-- stage_delete.lua: removes the record of a namespace that has no members.
--
-- KEYS[1]  the record
-- KEYS[2]  the members
-- ARGV[1]  the epoch that the caller has seen: compare-and-set
-- ARGV[2]  1 removes it, 0 only tells what would happen
-- Reply    {1, epoch, stage} removed, or free to; {0, epoch, stage, ...} blocked, as stage_move.lua says, why:
--          lives, silent; {-1, epoch, stage} the epoch is another; {-2, 0, 0} there is no record
--
-- Atomic because no member may join between the question and the removal.
if old then return old end
local epoch, stage = unpack(redis.call('HMGET', KEYS[1], 'epoch', 'stage'))
if not epoch then return {-2, 0, 0} end
epoch, stage = tonumber(epoch), tonumber(stage)
if epoch ~= tonumber(ARGV[1]) then return {-1, epoch, stage} end
local blocked = {0, epoch, stage}
only_if_alone(blocked, KEYS[2])
if #blocked > 3 then return blocked end
if ARGV[2] == '1' then redis.call('DEL', KEYS[1], KEYS[2]) end
return {1, epoch, stage}
