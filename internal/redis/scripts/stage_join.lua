-- stage_join.lua: a member reports, gets a new lease, and is told the stage.
--
-- KEYS record     the record
-- KEYS members    the members
-- ARGV id         the member's id
-- ARGV seq        the number of this report, growing
-- ARGV lease      its lease in milliseconds
-- ARGV epoch      the epoch that it runs, -1 none yet
-- ARGV stage      the stage that it runs, -1 none yet
-- ARGV lowest     the lowest stage of its locks and attempts under way, -1 none
-- ARGV highest    the highest, -1 none
-- ARGV longest    for how long a lock can outlive its last renewal, in milliseconds
-- ARGV skew       how far its clock is ahead of the server's, in milliseconds
-- ARGV info       host, process and version as JSON
-- ARGV not_after  the last moment at which this report counts; 0 asks for the record only, and writes nothing
-- ARGV why        why it cannot run the record; empty when it can
-- Reply     {1, now, ends, epoch, stage, patterns, clients}; {0, now} there is no record;
--           {-1, now} a later report has arrived already, or the member has left; {-2, now} it came too late;
--           {2, now, 0, epoch, ...} the record, to one who only asks;
--           {-3, now, ms, why} no lease, the server has lost changes or may have: restarted for ms at most; ahead, another
--           member is; apart, this one is two stages away from the record
--
-- Atomic because what a member is told must be on record before it can act on it: stage_move.lua counts
-- both what a member ran and what it may have begun to run.
--
-- Whatever the server forgets, stages two apart are not in use together. A member that is two stages away from the record gets no
-- lease until it holds nothing there. One that does not run the record as it stands, as every new one, gets none while another
-- is two stages ahead of it, or while that cannot be known: see doubted().
-- include effects.lua
-- include stage_shared.lua
if old_server then return old_server end
-- include stage_version.lua
local order = redis.call('HMGET', record, 'epoch', 'stage', 'patterns', 'clients', 'server', 'doubt', 'ahead')
if not order[1] then return {0, now} end
local told = tonumber(order[2])
not_after = tonumber(not_after)
if not_after == 0 then
  return {2, now, 0, tonumber(order[1]), told, order[3], order[4]}
end
if now > not_after then return {-2, now} end
local ends = now + tonumber(lease)
local before = redis.call('HGET', members, id)
before = before and member_of(before)
if before then
  if before.left or before.seq >= tonumber(seq) then return {-1, now} end
  ends = math.max(ends, before.ends) -- after a step back of the clock, commands may still carry the old end
else
  each_member(members, true) -- forgets those that have run out, so that restarts leave nothing behind
end
epoch, stage = tonumber(epoch), tonumber(stage)
local current = tonumber(order[1])
local lo, hi = 9, -9 -- of what it runs and holds
for _, used in ipairs({stage, tonumber(lowest), tonumber(highest)}) do
  if used >= 0 then lo, hi = math.min(lo, used), math.max(hi, used) end
end
local apart = math.max(hi, told) - math.min(lo, told) > 1
local runs = epoch == current and stage == told
local left = doubted(record, order[5], order[6], runs and not apart, true)
local ahead, refused
if apart then
  refused = 'apart'
  if epoch > current or epoch == current and not runs or before and before.ahead then ahead = 1 end
elseif not runs and left > 0 then
  refused = 'restarted'
elseif not runs and order[7] then
  for _, member in ipairs(each_member(members)) do
    if member.ahead and member.id ~= id then refused = 'ahead' end
  end
end
if not refused or lo > hi then lo, hi = math.min(lo, told), math.max(hi, told) end
if ahead then
  redis.call('HSET', record, 'ahead', 1)
elseif order[7] and not runs and not refused then
  redis.call('HDEL', record, 'ahead')
end
redis.call('HSET', members, id, cjson.encode({
  seq = tonumber(seq), epoch = epoch, stage = stage, lo = lo, hi = hi,
  seen = now, ends = ends, longest = tonumber(longest), skew = tonumber(skew), info = info, why = why, ahead = ahead,
}))
if refused then return {-3, now, left, refused} end
return {1, now, ends, tonumber(order[1]), told, order[3], order[4]}
