-- sidecar_expire.lua: the EXPIRE family, of a service behind a sidecar: moves the end of a lease that is the service's own.
--
-- KEYS key        the lock's key
-- KEYS guard      its guard
-- KEYS record     the record of its sidecars
-- WORD name       of the sidecar
-- WORD ttl        in milliseconds
-- WORD ends       see sidecar_take.lua
-- WORD host       the sidecar's clock in milliseconds
-- WORD not_after  the last millisecond of the server's clock at which this command may act, 0 for none
-- Reply    1 the lock is ours and lasts for ttl; 0 it is not, or the lease of this member is over
--
-- Atomic because between a look and a PEXPIRE another client can take the lock.
-- The lock's key comes last: an answer of 1 is never about a guard that ends sooner than was said.
-- include effects.lua
-- include clock.lua
-- include bridge_shared.lua
-- include sidecar_shared.lua
-- include replica.lua
if old_server then return old_server end
local s = read(name)
local mine = held(s)
local seen = text(key)
if not mine or seen ~= mine or past(s, host) then return replica(key, seen) or 0 end
if late(not_after) then
  tell(name, 'late')
  return 0
end
s.ends = ends
prolong(s, ttl)
if s.token ~= '=' then redis.call('PEXPIRE', guard, ttl) end
return redis.call('PEXPIRE', key, ttl)
