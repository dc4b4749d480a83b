-- sidecar_keep.lua: looks after a lock of a service behind a sidecar, on the sidecar's own connection: renews one that has no lease,
-- repairs one after a stale DEL.
--
-- KEYS key        the lock's key
-- KEYS guard      its guard
-- KEYS record     the record of its sidecars
-- WORD name       of the sidecar
-- WORD ttl        in milliseconds, of a lock whose client wrote no expiry; 0 renews none
-- WORD not_after  the last millisecond of the server's clock at which this command may act, 0 for none
-- Reply    {1, ms, 0, token}    held for so long, as it should be; another grant has another token
--          {2, ms, 0, token}    repaired: one of the two keys was gone and is set again
--          {-1, ms, 0, value}   displaced: the guard is ours, the key holds that value; neither is changed
--          {0, n}               nothing of ours; n is 1 if a grant ended without a DEL
--          {3, 0}               the same, and a value without a TTL stands on the key: it may be one of stage legacy
--          error STAGE          the command came after its bound; nothing was done
--
-- Atomic for the reasons of bridge_renew.lua.
-- What is there is extended first, and what is missing set last: see bridge_renew.lua.
-- include bounded.lua
-- include bridge_shared.lua
-- include sidecar_database.lua
-- include sidecar_shared.lua
-- include replica.lua
local s = read(name)
local mine, owner, seen = s.token, text(guard), text(key)
if mine == '-' or seen ~= mine and owner ~= mine then
  local refusal = replica(key, seen)
  if refusal then return refusal end
  if seen and redis.call('PTTL', key) < 0 then return {3, 0} end
  if mine == '-' then return {0, 0} end
  drop(name, s)
  return {0, 1}
end
local left = math.max(redis.call('PTTL', owner == mine and guard or key), 1)
if owner == mine and seen and seen ~= mine then return replica(key, seen) or {-1, left, 0, seen} end
if s.ends == '0' and s.timed == '0' and ttl ~= '0' then
  write(name, s, ttl * 3)
  left = tonumber(ttl)
  if owner == mine then redis.call('PEXPIRE', guard, ttl) end
  if seen == mine then redis.call('PEXPIRE', key, ttl) end
end
if seen == mine and (owner == mine or mine == s.text) then return {1, left, 0, mine} end
redis.call('SET', owner == mine and key or guard, mine, 'PX', left)
return {2, left, 0, mine}
