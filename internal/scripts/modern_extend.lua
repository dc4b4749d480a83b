-- modern_extend.lua: extends the TTL of a key while it holds our token.
--
-- KEYS[1]  the lock's key
-- KEYS[2]  the fencing counter, or the lock's key when none is wanted
-- ARGV[1]  the token
-- ARGV[2]  the TTL in milliseconds
-- ARGV[3]  the counter's TTL in milliseconds, 0 when none is wanted
-- Reply    1 extended, 0 the key is absent, holds something else, or is not a string
--
-- Atomic because between a GET and a PEXPIRE the lease can end: we would then extend a successor's.
-- The counter's TTL is moved along, so that a lock held for longer than that still finds it.
-- A GET that is refused tells nothing about the key: the refusal is the script's error. Only WRONGTYPE says that the
-- key is not ours. The second GET raises the error with its line.
local value = redis.pcall('GET', KEYS[1])
if value == ARGV[1] then
  local extended = redis.call('PEXPIRE', KEYS[1], ARGV[2])
  if ARGV[3] ~= '0' then redis.pcall('PEXPIRE', KEYS[2], ARGV[3]) end -- refused or not, the lock is extended
  return extended
end
if type(value) == 'table' and not string.find(value.err, 'WRONGTYPE', 1, true) then return redis.call('GET', KEYS[1]) end
return 0
