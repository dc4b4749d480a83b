-- stage_leave.lua: a member that holds nothing says goodbye.
--
-- KEYS record     the record
-- KEYS members    the members
-- ARGV id         the member's id
-- ARGV seq        the number of this report
-- ARGV not_after  the last moment at which any report of it counts
-- Reply    1 it no longer counts, 0 a later report has arrived
--
-- Atomic because a report that is still on its way must not bring the member back: the entry that is left
-- refuses it until the report's own bound does. Without a record every report is refused, and nobody would ever remove
-- an entry.
-- include stage_version.lua
if redis.call('EXISTS', record) == 0 then
  redis.call('HDEL', members, id)
  return 1
end
local before = redis.call('HGET', members, id)
seq = tonumber(seq)
local read, last = pcall(cjson.decode, before or '')
if read and type(last) == 'table' and (tonumber(last.seq) or 0) >= seq then return 0 end
redis.call('HSET', members, id, cjson.encode({seq = seq, left = tonumber(not_after)}))
return 1
