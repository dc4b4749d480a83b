-- stage_leave.lua: a member that holds nothing says goodbye.
--
-- KEYS[1]  the members
-- ARGV[1]  the member's id
-- ARGV[2]  the number of this report
-- ARGV[3]  the last moment at which any report of it counts
-- Reply    1 it no longer counts, 0 a later report has arrived
--
-- Atomic because a report that is still on its way must not bring the member back: the entry that is left
-- refuses it until the report's own bound does.
local before = redis.call('HGET', KEYS[1], ARGV[1])
local seq = tonumber(ARGV[2])
if before and cjson.decode(before).seq >= seq then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], cjson.encode({seq = seq, left = tonumber(ARGV[3])}))
return 1
