-- compare_del.lua: deletes a key only while it holds a given value.
--
-- KEYS[1]  the lock's key
-- ARGV[1]  the value that it must hold
-- Reply    1 deleted, 0 the key is absent, holds something else, or is not a string
--
-- Atomic because between a GET and a DEL the lease can end and another client can take the lock: the
-- DEL would then remove the successor's (the hazard "stale-delete").
-- A GET that is refused tells nothing about the key: the refusal is the script's error. Only WRONGTYPE says that the
-- key is not ours. The second GET raises the error with its line.
local value = redis.pcall('GET', KEYS[1])
if value == ARGV[1] then return redis.call('DEL', KEYS[1]) end
if type(value) == 'table' and not string.find(value.err, 'WRONGTYPE', 1, true) then return redis.call('GET', KEYS[1]) end
return 0
