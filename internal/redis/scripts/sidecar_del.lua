-- sidecar_del.lua: DEL and UNLINK of a service behind a sidecar: what a bare server does, but for the token of another.
--
-- KEYS key        the lock's key
-- KEYS guard      its guard
-- KEYS record     the record of its sidecars
-- KEYS queue      its queue, or the lock's key when none is kept
-- KEYS yield      the state of the gaps for old clients, or the lock's key when none are left
-- WORD name       of the sidecar
-- WORD breath     for how long the guard stays behind in milliseconds, 0: not at all; see bridge_release.lua
-- WORD gap       the length of a gap for old clients in milliseconds, 0 for none: see bridge_yield.lua
-- Reply    1  deleted: the service's own lock, or a value that is no token
--          0  the key is absent, or another's token stands there, and stays
--
-- Atomic for the reasons of bridge_release.lua. Giving back has no bound.
-- A DEL does not say which of the service's threads sends it. It frees what the service holds, as on a bare server. It spares the
-- token of another: a DEL that comes so late is a holder's that overran its lease.
-- A value over our token is a loser's GETSET, or of a client that took the key after a stale DEL. A bare server deletes it.
-- The key is deleted first. Whatever is asked or written after that may be refused: it changes nothing.
-- include effects.lua
-- include clock.lua
-- include sidecar_database.lua
-- include sidecar_shared.lua
-- include replica.lua
local s = read(name)
local what, seen, owner = whose(s)
local mine = s.token ~= '-' and s.token
local ours = mine and owner == mine
if what ~= 'mine' then
  local refusal = (what == 'none' or what == 'theirs') and replica(key, seen)
  if refusal then return refusal end
  local freed = what == 'raw' and redis.call('DEL', key) or 0
  if ours then redis.call('DEL', guard) end
  if mine then
    tell(name, what == 'none' and 'gone' or 'displaced')
    drop(name, s)
  end
  return freed
end
if ours and breath == '0' and s.place == '-' and redis.pcall('EXISTS', yield, queue) == (yield == key and 1 or 0) + (queue == key and 1 or 0) then -- the usual case
  redis.call('DEL', key, guard)
  redis.pcall('HDEL', record, name)
  return 1
end
-- include bridge_yield.lua
-- include fence.lua
-- include queue_grant.lua
local waiters = queue ~= key and redis.pcall('ZRANGE', queue, 0, 9) or {}
local begins, handed = false, false
if not old_server and pcall(look) then
  if gap ~= '0' and ours and (#waiters > 0 or recall()) then
    gap = tonumber(gap)
    begins = yields(math.max(0, now - s.since), #waiters)
  end
  handed = #waiters > 0 and not begins and grant(key, queue, guard, key, '0', {value = mine, guarded = ours})
end
if not handed then
  redis.call('DEL', key)
  if ours and (breath == '0' or redis.pcall('SET', guard, 'breath', 'PX', breath).err) then redis.pcall('DEL', guard) end
  if #waiters > 0 then first(queue) end
end
drop(name, s)
return 1
