-- stage_list.lua: reads the list of namespaces.
--
-- KEYS list  the list, see stage_claim.lua
-- Reply    {now, the names and entries}
--
-- Atomic because the age of an entry is told by the clock of the same moment. It writes nothing.
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
return {now, redis.call('HGETALL', list)}
