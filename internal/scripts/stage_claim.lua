-- stage_claim.lua: changes one entry of the list of namespaces, if the list is still the one that was read.
--
-- KEYS[1]  the list: a hash from a namespace's name to a JSON object. The field with the empty name holds a
--          random word that changes with every change of the list.
-- ARGV[1]  the word that the caller has read, empty for a list that was not there
-- ARGV[2]  the new word
-- ARGV[3]  the namespace
-- ARGV[4]  the entry; empty: it is removed, and the list with its last entry
-- Reply    {1, now} changed; {0, now} the list is another by now, nothing changed
--
-- Atomic because two operators may reserve keys at once: the second one must see what the first has reserved.
-- The records themselves are in other slots of a cluster, so no script can compare all of them.
if old then return old end
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
if (redis.call('HGET', KEYS[1], '') or '') ~= ARGV[1] then return {0, now} end
if ARGV[4] ~= '' then
  redis.call('HMSET', KEYS[1], '', ARGV[2], ARGV[3], ARGV[4])
  return {1, now}
end
redis.call('HDEL', KEYS[1], ARGV[3])
if redis.call('HLEN', KEYS[1]) > 1 then
  redis.call('HSET', KEYS[1], '', ARGV[2])
else
  redis.call('DEL', KEYS[1])
end
return {1, now}
