-- stage_move.lua: moves a namespace one stage on or back. It refuses if two stages that are not
-- neighbours could then be live together.
--
-- KEYS record   the record
-- KEYS members  the members
-- ARGV seen     the epoch that the caller has seen: compare-and-set
-- ARGV target   the stage to move to
-- ARGV execute  1 changes the record, 0 only tells what would happen
-- ARGV note     what the step rests on, for people: kept in the record until the next step
-- ARGV change   who changes what, from where and why: a JSON object in one line, for people
-- Reply    {1, epoch, stage}                              moved, or free to move
--          {0, epoch, stage, six elements each ...}       blocked by members; the elements are those of blocker in
--                                                         stage_shared.lua; why: misfit, behind, silent, holds, unreadable; restarted, by
--                                                         the server
--          {-1, epoch, stage}                             the epoch is another: nothing was done
--          {-2, 0, 0}                                     there is no record
--
-- Atomic because the members must not change between the question and the move.
--
-- Safe at any crash of any member. A member's lo..hi covers every stage in which a command of it may act before its lease ends.
-- It also covers every lock that it may hold until gone_at. The move is allowed only if all members' ranges and the new stage
-- together span two neighbours at most. A member that joins
-- or reports later is told the new stage. So stages 0 and 2 are never both in use.
-- Forward, each live member must also run the current epoch, and each silent one must have run out. So a fleet moves in step. A
-- member that lives and cannot run the record is in the way until somebody has mended or stopped it: it is a service that does
-- not work, and the operator should know. Back, the range alone decides: undoing a step may not wait for a member that has not
-- even taken it.
-- include effects.lua
-- include stage_shared.lua
if old_server then return old_server end
-- include stage_version.lua
-- include stage_epoch.lua
target = tonumber(target)
if math.abs(target - stage) ~= 1 then return redis.error_reply('STAGE the new stage is no neighbour') end
local counted, broken = each_member(members, execute == '1')
local lowest, highest = target, target
for _, member in ipairs(counted) do
  lowest, highest = math.min(lowest, member.lo), math.max(highest, member.hi)
end
for _, member in ipairs(counted) do
  local live = now <= member.ends
  if target > stage and not live then
    blocker(blocked, member, 'silent', member.stage)
  elseif target > stage and (member.why or '') ~= '' then
    blocker(blocked, member, 'misfit', member.stage)
  elseif target > stage and (member.epoch ~= epoch or member.stage ~= stage) then
    blocker(blocked, member, 'behind', member.stage)
  elseif highest - member.lo > 1 or member.hi - lowest > 1 then
    blocker(blocked, member, 'holds', target > stage and member.lo or member.hi)
  end
end
unreadable(blocked, broken, stage)
if #blocked > 3 then return blocked end
if execute ~= '1' then return {1, epoch, stage} end
redis.call('HMSET', record, 'epoch', epoch + 1, 'stage', target, 'since', string.format('%.0f', now), 'note', note,
  'history', history_with(record, change))
return {1, epoch + 1, target}
