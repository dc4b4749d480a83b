-- stage_set.lua: changes what a namespace is: its patterns, and what is known of its old clients.
--
-- KEYS record     the record
-- KEYS members    the members
-- ARGV seen       the epoch that the caller has seen: compare-and-set
-- ARGV patterns   the key patterns, a JSON array of strings
-- ARGV clients    what is known of the old clients, a JSON object: see stage_shared.lua
-- ARGV alone      1 only while no member counts: for what members of two minds may not see
-- ARGV execute    1 changes the record, 0 only tells what would happen
-- ARGV not_after  the last moment at which this may act: until then the patterns are reserved; 0 no bound
-- ARGV change     who changes what, from where and why: a JSON object in one line, for people
-- Reply    {1, epoch, stage} changed, or free to; {0, epoch, stage, ...} blocked, as stage_move.lua says, why:
--          lives, silent; {-1, epoch, stage} the epoch is another; {-2, 0, 0} there is no record;
--          {-3, ms, 0} it came ms too late
--
-- Atomic because no member may join between the question and the change. The epoch grows: members take the
-- change over with their next report, and the next stage waits until all have.
-- include effects.lua
-- include stage_shared.lua
if old_server then return old_server end
-- include stage_version.lua
-- include stage_epoch.lua
if alone == '1' then only_if_alone(blocked, members) end
if #blocked > 3 then return blocked end
if execute ~= '1' then return {1, epoch, stage} end
not_after = tonumber(not_after)
if not_after > 0 and now > not_after then return {-3, now - not_after, 0} end
redis.call('HMSET', record, 'epoch', epoch + 1, 'patterns', patterns, 'clients', clients,
  'history', history_with(record, change))
return {1, epoch + 1, stage}
