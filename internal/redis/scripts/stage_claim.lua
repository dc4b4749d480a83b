-- stage_claim.lua: changes one entry of the list of namespaces, if the list is still the one that was read.
--
-- KEYS list       the list: a hash from a namespace's name to a JSON object. The field with the empty name holds a
--                 random word that changes with every change of the list.
-- ARGV word       the word that the caller has read, empty for a list that was not there
-- ARGV new_word   the new word
-- ARGV namespace  the namespace
-- ARGV entry      the entry; empty: it is removed, and the list with its last entry
-- Reply    {1, now} changed; {0, now} the list is another by now, nothing changed
--
-- Atomic because two operators may reserve keys at once: the second one must see what the first has reserved.
-- The records themselves are in other slots of a cluster, so no script can compare all of them.
-- include effects.lua
if old_server then return old_server end
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
if (redis.call('HGET', list, '') or '') ~= word then return {0, now} end
if entry ~= '' then
  redis.call('HMSET', list, '', new_word, namespace, entry)
  return {1, now}
end
redis.call('HDEL', list, namespace)
if redis.call('HLEN', list) > 1 then
  redis.call('HSET', list, '', new_word)
else
  redis.call('DEL', list)
end
return {1, now}
