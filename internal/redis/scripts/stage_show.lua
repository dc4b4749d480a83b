-- stage_show.lua: the record of a namespace and its members, at one moment.
--
-- KEYS record   the record
-- KEYS members  the members
-- Reply    {now, the record's fields and values, the members' ids and JSON objects}
--
-- Atomic because a stage and the members of another moment do not fit together. It writes nothing.
-- include stage_version.lua
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
return {now, redis.call('HGETALL', record), redis.call('HGETALL', members)}
