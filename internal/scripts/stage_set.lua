-- stage_set.lua: changes what a namespace is: its patterns, and what is known of its old clients.
--
-- KEYS[1]  the record
-- KEYS[2]  the members
-- ARGV[1]  the epoch that the caller has seen: compare-and-set
-- ARGV[2]  the key patterns, a JSON array of strings
-- ARGV[3]  what is known of the old clients, a JSON object: see stage_shared.lua
-- ARGV[4]  1 only while no member counts: for what members of two minds may not see
-- ARGV[5]  1 changes the record, 0 only tells what would happen
-- ARGV[6]  the last moment at which this may act: until then the patterns are reserved; 0 no bound
-- Reply    {1, epoch, stage} changed, or free to; {0, epoch, stage, ...} blocked, as stage_move.lua says, why:
--          lives, silent; {-1, epoch, stage} the epoch is another; {-2, 0, 0} there is no record;
--          {-3, ms, 0} it came ms too late
--
-- Atomic because no member may join between the question and the change. The epoch grows: members take the
-- change over with their next report, and the next stage waits until all have.
if old then return old end
local epoch, stage = unpack(redis.call('HMGET', KEYS[1], 'epoch', 'stage'))
if not epoch then return {-2, 0, 0} end
epoch, stage = tonumber(epoch), tonumber(stage)
if epoch ~= tonumber(ARGV[1]) then return {-1, epoch, stage} end
local blocked = {0, epoch, stage}
if ARGV[4] == '1' then only_if_alone(blocked, KEYS[2]) end
if #blocked > 3 then return blocked end
if ARGV[5] ~= '1' then return {1, epoch, stage} end
local not_after = tonumber(ARGV[6])
if not_after > 0 and now > not_after then return {-3, now - not_after, 0} end
redis.call('HMSET', KEYS[1], 'epoch', epoch + 1, 'patterns', ARGV[2], 'clients', ARGV[3])
return {1, epoch + 1, stage}
