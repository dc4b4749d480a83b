-- stage_leave.lua: a member that holds nothing says goodbye.
--
-- KEYS[1]  the record
-- KEYS[2]  the members
-- ARGV[1]  the member's id
-- ARGV[2]  the number of this report
-- ARGV[3]  the last moment at which any report of it counts
-- Reply    1 it no longer counts, 0 a later report has arrived
--
-- Atomic because a report that is still on its way must not bring the member back: the entry that is left
-- refuses it until the report's own bound does. Without a record every report is refused, and nobody would ever remove
-- an entry.
if redis.call('EXISTS', KEYS[1]) == 0 then
  redis.call('HDEL', KEYS[2], ARGV[1])
  return 1
end
local before = redis.call('HGET', KEYS[2], ARGV[1])
local seq = tonumber(ARGV[2])
if before and cjson.decode(before).seq >= seq then return 0 end
redis.call('HSET', KEYS[2], ARGV[1], cjson.encode({seq = seq, left = tonumber(ARGV[3])}))
return 1
