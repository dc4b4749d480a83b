-- sidecar_del.lua: DEL and UNLINK of a service behind a sidecar: deletes what the service holds, and nothing else.
--
-- KEYS key        the lock's key
-- KEYS guard      its guard
-- KEYS record     the record of its sidecars
-- KEYS queue      its queue, or the lock's key when none is kept
-- WORD name       of the sidecar
-- WORD breath     for how long the guard stays behind in milliseconds, 0: not at all; see bridge_release.lua
-- WORD plain      1: a key on which nothing is ours is deleted all the same, as in stage legacy
-- WORD not_after  the last millisecond of the server's clock at which that may happen, 0 for none
-- Reply    1  discharged: the lock is free, or, where another grant of the service is out, kept for that one
--          0  nothing of this service was on the key
--
-- Atomic for the reasons of bridge_release.lua. Giving back has no bound.
-- A DEL does not say which of the service's threads sends it. While two grants are out (one thread overran its lease, another one
-- has the lock) the first DEL may be of either: it discharges the newer and frees nothing. The last one frees the lock. To discharge the older
-- would let one lost DEL delay all releases after it. A DEL that does not come is given up after a while.
-- The key is deleted first. Whatever is asked or written after that may be refused: it changes nothing.
-- include effects.lua
-- include bridge_shared.lua
-- include modern_grant.lua
-- include sidecar_shared.lua
local s = read(name)
if not old_server and pcall(look) then give_up(s) end
local mine, token = held(s), s.token
local ours = #s.owed > 0
table.remove(s.owed)
if #s.owed > 0 then
  write(name, s, math.max(s.owed[#s.owed] - (now or 0), 1))
  tell(name, 'ambiguous')
  return 1
end
local seen = redis.pcall('GET', key)
if type(seen) == 'table' and not string.find(seen.err, 'WRONGTYPE', 1, true) then return redis.call('GET', key) end
local owner = redis.pcall('GET', guard)
local freed = 0
if mine and seen == mine then
  freed = 1
  if queue == key or not grant(key, queue, key, '0') then redis.call('DEL', key) end
elseif not ours and plain == '1' and seen and not late(not_after) then
  freed = redis.call('DEL', key)
end
if mine and owner == mine and (breath == '0' or freed == 0 or redis.pcall('PEXPIRE', guard, breath) ~= 1) then
  redis.pcall('DEL', guard)
end
if mine and seen ~= mine then tell(name, seen and 'displaced' or 'gone') end
s.token, s.text = '-', ''
if s.place == '-' then redis.pcall('HDEL', record, name) else pcall(write, name, s, 1) end
return freed
