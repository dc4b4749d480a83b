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
-- stage_version.lua: the part that all scripts share which read or write the record of a namespace. It stands before each of them.
--
-- The record's field protocol is "<number>", or "<number> <the first build that knows it>"; without the field the number is 1. A script that
-- does not know the number must end here: it cannot know what anything else of the record, or of a member, means. These stay as they are
-- in every later version: the record's name, that it is a hash, and this field.
local record = KEYS[1]
local protocol, first_build = string.match(redis.call('HMGET', record, 'protocol')[1] or '1', '^(%d+) ?(%C*)$')
if protocol ~= '1' then
  if not first_build or first_build == '' then first_build = 'a later build' end
  return redis.error_reply('PROTOCOL the record is of protocol ' .. (protocol or 'unknown') .. ', and this build knows protocol 1; use ' .. first_build)
end
local members, id, seq, not_after = KEYS[2], ARGV[1], ARGV[2], ARGV[3]
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
