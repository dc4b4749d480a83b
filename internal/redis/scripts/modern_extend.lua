-- modern_extend.lua: extends the TTL of a key while it holds our token.
--
-- KEYS key        the lock's key
-- KEYS fence      the fencing counter, or the lock's key when none is wanted
-- ARGV token      the token
-- ARGV ttl        the TTL in milliseconds
-- ARGV fence_ttl  the counter's TTL in milliseconds, 0 when none is wanted
-- Reply    1           extended
--          {0, value}  the key holds that value
--          0           the key is absent, or is not a string
--
-- Atomic because between a GET and a PEXPIRE the lease can end: we would then extend a successor's.
-- The counter's TTL is moved along, so that a lock held for longer than that still finds it.
-- A GET that is refused tells nothing about the key: the refusal is the script's error. Only WRONGTYPE says that the
-- key is not ours. The second GET raises the error with its line.
-- include replica.lua
local found = redis.pcall('GET', key)
if found == token then
  local extended = redis.call('PEXPIRE', key, ttl)
  if fence_ttl ~= '0' then redis.pcall('PEXPIRE', fence, fence_ttl) end -- refused or not, the lock is extended
  return extended
end
if type(found) == 'table' and not string.find(found.err, 'WRONGTYPE', 1, true) then return redis.call('GET', key) end
return replica(key, found) or type(found) == 'string' and {0, found} or 0
