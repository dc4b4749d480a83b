-- compare_set.lua: replaces a key's value only while it holds a given one; a TTL on the key stays.
--
-- KEYS[1]  the lock's key
-- ARGV[1]  the value that it must hold
-- ARGV[2]  the value to put in its place
-- Reply    1 replaced, 0 the key is absent, holds something else, or is not a string
--
-- Atomic because a successor may have taken the lock over since we last looked: a blind SET or GETSET
-- would overwrite its lease (the hazard "clobber").
-- A server that is out of memory refuses a SET, but not after a PEXPIRE or a PERSIST in the same script.
-- They change nothing here and may be refused. So a holder keeps its lock there.
-- A GET that is refused tells nothing about the key: the refusal is the script's error. Only WRONGTYPE says that the
-- key is not ours. The second GET raises the error with its line.
local value = redis.pcall('GET', KEYS[1])
if type(value) == 'table' and not string.find(value.err, 'WRONGTYPE', 1, true) then return redis.call('GET', KEYS[1]) end
if value ~= ARGV[1] then return 0 end
local ttl = redis.call('PTTL', KEYS[1])
if ttl >= 0 then -- 0 is less than a millisecond, not none
  redis.pcall('PEXPIRE', KEYS[1], math.max(ttl, 1))
  redis.call('SET', KEYS[1], ARGV[2], 'PX', math.max(ttl, 1))
else
  redis.pcall('PERSIST', KEYS[1])
  redis.call('SET', KEYS[1], ARGV[2])
end
return 1
