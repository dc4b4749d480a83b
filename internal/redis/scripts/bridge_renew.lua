-- bridge_renew.lua: extends a bridge lock, repairs it after a stale DEL, or finds that it is lost.
--
-- KEYS key        the lock's key
-- KEYS guard      its guard
-- KEYS fence      the fencing counter, or the lock's key when none is wanted
-- ARGV value      the bridge value
-- ARGV ttl        the TTL in milliseconds
-- ARGV fence_ttl  the fencing counter's TTL in milliseconds, 0 when none is wanted
-- ARGV not_after  the last millisecond of the server's clock at which this command may act, 0 for none
-- Reply    {1}                 extended
--          {2}                 repaired: one of the two keys was gone and is set again
--          {-1, 0, 0, value}   displaced: the guard is ours, but the key holds that value; neither is changed
--          {0}                 lost: neither is ours; nothing changed
--          error STAGE         the command came after its bound; nothing was done
--
-- Atomic because between a look at the two keys and a write another client can take the key.
-- A displaced holder keeps its guard, unextended: no other bridge client may enter before it has left.
-- A key that is ours without a guard is safe to repair: a client that takes a lock overwrites the key. What
-- is there is extended by PEXPIRE, which a server that is out of memory allows, and first of all: after it
-- the server allows the SET of what is missing too. The counter comes last, and may be refused.
-- include bounded.lua
local found = redis.pcall('MGET', key, guard)
if found[1] == value and found[2] == value then -- the usual case, before what only the other cases need
  redis.call('PEXPIRE', key, ttl)
  redis.call('PEXPIRE', guard, ttl)
  if fence_ttl ~= '0' then redis.pcall('PEXPIRE', fence, fence_ttl) end
  return {1}
end
-- include bridge_shared.lua
-- include replica.lua
local owner, seen = text(guard), text(key)
if owner == value and seen and seen ~= value then return replica(key, seen) or {-1, 0, 0, seen} end
if owner ~= value and (owner or seen ~= value) then return replica(key, seen) or {0} end
local missing = not seen and key or not owner and guard
if missing ~= key then redis.call('PEXPIRE', key, ttl) end
if missing ~= guard then redis.call('PEXPIRE', guard, ttl) end
if missing then redis.call('SET', missing, value, 'PX', ttl) end
if fence_ttl ~= '0' then redis.pcall('PEXPIRE', fence, fence_ttl) end
return {missing and 2 or 1}
