-- compare_set.lua: replaces a key's value only while it holds a given one; a TTL on the key stays.
--
-- KEYS key    the lock's key
-- ARGV old    the value that it must hold
-- ARGV value  the value to put in its place
-- Reply    1 replaced, 0 the key is absent, holds something else, or is not a string
--
-- Atomic because a successor may have taken the lock over since we last looked: a blind SET or GETSET
-- would overwrite its lease (the hazard "clobber").
-- A server that is out of memory refuses a SET. It does not after a PEXPIRE or a PERSIST in the same script. These
-- change nothing here and may be refused. So a holder keeps its lock there.
-- A GET that is refused tells nothing about the key: the refusal is the script's error. Only WRONGTYPE says that the
-- key is not ours. The second GET raises the error with its line.
-- include replica.lua
local found = redis.pcall('GET', key)
if type(found) == 'table' and not string.find(found.err, 'WRONGTYPE', 1, true) then return redis.call('GET', key) end
if found ~= old then return replica(key, found) or 0 end
local ttl = redis.call('PTTL', key)
if ttl >= 0 then -- 0 is less than a millisecond, not none
  redis.pcall('PEXPIRE', key, math.max(ttl, 1))
  redis.call('SET', key, value, 'PX', math.max(ttl, 1))
else
  redis.pcall('PERSIST', key)
  redis.call('SET', key, value)
end
return 1
