-- compare_del.lua: deletes a key only while it holds a given value.
--
-- KEYS key    the lock's key
-- ARGV value  the value that it must hold
-- Reply    1 deleted, 0 the key is absent, holds something else, or is not a string
--
-- Atomic because between a GET and a DEL the lease can end and another client can take the lock: the
-- DEL would then remove the successor's (the hazard "stale-delete").
-- A GET that is refused tells nothing about the key: the refusal is the script's error. Only WRONGTYPE says that the
-- key is not ours. The second GET raises the error with its line.
-- include replica.lua
local found = redis.pcall('GET', key)
if found == value then return redis.call('DEL', key) end
if type(found) == 'table' and not string.find(found.err, 'WRONGTYPE', 1, true) then return redis.call('GET', key) end
return replica(key, found) or 0
