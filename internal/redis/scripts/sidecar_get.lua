-- sidecar_get.lua: GET of a service behind a sidecar.
--
-- KEYS key        the lock's key
-- KEYS guard      its guard
-- KEYS record     the record of its sidecars
-- WORD name       of the sidecar
-- WORD far        the number that stands for any other holder of the lock: live on any clock
-- WORD host       the sidecar's clock in milliseconds
-- WORD unit       of the namespace's dialect: ms, s, float or ns
-- WORD layout     of it
-- Reply    nil: the key is absent, or kept for the service's next attempt. What the service wrote, while it holds. Far: another's token
--          stands there, or an expiry without a TTL that is over. Else what a bare server answers.
--
-- Atomic because the key and what the record says of it are true of one moment only.
-- An expiry of others that is over is not shown: so the clients send no GETSET to take it over. Their SETNX takes it over, by the
-- server's clock.
-- include effects.lua
-- include clock.lua
-- include bridge_shared.lua
-- include sidecar_database.lua
-- include sidecar_shared.lua
if old_server then return old_server end
local s = read(name)
local what, seen = whose(s)
if what == 'mine' then return s.text end
if what == 'none' or what == 'kept' then return false end
if what == 'theirs' then return far end
if type(seen) == 'string' and redis.call('PTTL', key) < 0 then
  look()
  local due = expiry(seen, unit, layout)
  if due and due < tonumber(host) then return far end
end
return seen
