-- stage_version.lua: the part that all scripts share which read or write the record of a namespace. It stands before each of them.
--
-- The record's field protocol is "<number>", or "<number> <the first build that knows it>"; without the field the number is 1. A script that
-- does not know the number must end here: it cannot know what anything else of the record, or of a member, means. These stay as they are
-- in every later version: the record's name, that it is a hash, and this field.
local protocol, first_build = string.match(redis.call('HMGET', record, 'protocol')[1] or '1', '^(%d+) ?(%C*)$')
if protocol ~= '1' then
  if not first_build or first_build == '' then first_build = 'a later build' end
  return redis.error_reply('PROTOCOL the record is of protocol ' .. (protocol or 'unknown') .. ', and this build knows protocol 1; use ' .. first_build)
end
