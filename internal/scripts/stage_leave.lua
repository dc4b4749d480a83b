-- stage_leave.lua: a member that holds nothing says goodbye.
--
-- KEYS[1]  the members
-- ARGV[1]  the member's id
-- ARGV[2]  the number of this report
-- Reply    1 forgotten, 0 not known or a later report has arrived
--
-- Atomic because a report that is still on its way must not bring the member back.
local before = redis.call('HGET', KEYS[1], ARGV[1])
if not before or cjson.decode(before).seq >= tonumber(ARGV[2]) then return 0 end
return redis.call('HDEL', KEYS[1], ARGV[1])
