-- stage_join.lua: a member reports, gets a new lease, and is told the stage.
--
-- KEYS[1]   the record
-- KEYS[2]   the members
-- ARGV[1]   the member's id
-- ARGV[2]   the number of this report, growing
-- ARGV[3]   its lease in milliseconds
-- ARGV[4]   the epoch that it runs, -1 none yet
-- ARGV[5]   the stage that it runs, -1 none yet
-- ARGV[6]   the lowest stage of its locks and attempts under way, -1 none
-- ARGV[7]   the highest, -1 none
-- ARGV[8]   for how long a lock can outlive its last renewal, in milliseconds
-- ARGV[9]   how far its clock is ahead of the server's, in milliseconds
-- ARGV[10]  host, process and version as JSON
-- ARGV[11]  the last moment at which this report counts; 0 asks for the record only, and writes nothing
-- ARGV[12]  why it cannot run the record; empty when it can
-- Reply     {1, now, ends, epoch, stage, patterns, clients}; {0, now} there is no record;
--           {-1, now} a later report has arrived already, or the member has left; {-2, now} it came too late;
--           {2, now, 0, epoch, ...} the record, to one who only asks
--
-- Atomic because what a member is told must be on record before it can act on it: stage_move.lua counts
-- both what a member ran and what it may have begun to run.
if old then return old end
local record = redis.call('HMGET', KEYS[1], 'epoch', 'stage', 'patterns', 'clients')
if not record[1] then return {0, now} end
local told = tonumber(record[2])
local not_after = tonumber(ARGV[11])
if not_after == 0 then
  return {2, now, 0, tonumber(record[1]), told, record[3], record[4]}
end
if now > not_after then return {-2, now} end
local ends = now + tonumber(ARGV[3])
local before = redis.call('HGET', KEYS[2], ARGV[1])
if before then
  before = cjson.decode(before)
  if before.left or before.seq >= tonumber(ARGV[2]) then return {-1, now} end
  ends = math.max(ends, before.ends) -- after a step back of the clock, commands may still carry the old end
else
  each_member(KEYS[2], true) -- forgets those that have run out, so that restarts leave nothing behind
end
local lo, hi = told, told
for i = 5, 7 do
  local stage = tonumber(ARGV[i])
  if stage >= 0 then lo, hi = math.min(lo, stage), math.max(hi, stage) end
end
redis.call('HSET', KEYS[2], ARGV[1], cjson.encode({
  seq = tonumber(ARGV[2]), epoch = tonumber(ARGV[4]), stage = tonumber(ARGV[5]), lo = lo, hi = hi,
  seen = now, ends = ends, longest = tonumber(ARGV[8]), skew = tonumber(ARGV[9]), info = ARGV[10], why = ARGV[12],
}))
return {1, now, ends, tonumber(record[1]), told, record[3], record[4]}
