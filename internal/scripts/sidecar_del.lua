-- sidecar_del.lua: DEL and UNLINK of a service behind a sidecar: deletes what the service holds, and nothing else.
--
-- KEYS key        the lock's key
-- KEYS guard      its guard
-- KEYS record     the record of its sidecars
-- KEYS queue      its queue, or the lock's key when none is kept
-- KEYS yield      the state of the gaps for old clients, or the lock's key when none are left
-- WORD name       of the sidecar
-- WORD host       the sidecar's clock in milliseconds
-- WORD breath     for how long the guard stays behind in milliseconds, 0: not at all; see bridge_release.lua
-- WORD gap       the length of a gap for old clients in milliseconds, 0 for none: see bridge_yield.lua
-- WORD plain      1: a key on which nothing is ours is deleted too, as in stage legacy
-- WORD not_after  the last millisecond of the server's clock at which that may happen, 0 for none
-- Reply    1  discharged: the lock is free, or, where another grant of the service is out, kept for that one
--          0  nothing of this service was on the key
--
-- Atomic for the reasons of bridge_release.lua. Giving back has no bound.
-- A DEL does not say which of the service's threads sends it. Two grants may be out: one thread overran its lease, another one
-- has the lock. Then the first DEL may be of either: it discharges the newer and frees nothing. The last one frees the lock. To
-- discharge the older would let one lost DEL delay all releases after it. A DEL that does not come is given up after a while.
-- The key is deleted first. Whatever is asked or written after that may be refused: it changes nothing.
-- include effects.lua
-- include clock.lua
-- include sidecar_shared.lua
-- include replica.lua
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
local freed, handed, begins = 0, false, false
local stands = mine and seen == mine and not past(s, host)
local refusal = not stands and replica(key, seen)
if refusal then return refusal end
local alone = stands and redis.pcall('EXISTS', yield, queue) == (yield == key and 1 or 0) + (queue == key and 1 or 0)
if alone and owner == mine and breath == '0' and s.place == '-' then -- the usual case
  redis.call('DEL', key, guard)
  redis.pcall('HDEL', record, name)
  return 1
end
-- include bridge_yield.lua
-- include fence.lua
-- include queue_grant.lua
if stands then
  freed = 1
  local waiters = queue ~= key and redis.pcall('ZRANGE', queue, 0, 9) or {}
  if gap ~= '0' and owner == mine and now and (#waiters > 0 or recall()) then
    gap = tonumber(gap)
    begins = yields(math.max(0, now - s.since), #waiters)
  end
  handed = #waiters > 0 and not begins and not old_server and grant(key, queue, guard, key, '0', {value = mine, guarded = owner == mine})
  if not handed then
    redis.call('DEL', key)
    if #waiters > 0 then first(queue) end
  end
elseif not ours and plain == '1' and seen and not late(not_after) then
  freed = redis.call('DEL', key)
end
if mine and not handed and owner == mine and (breath == '0' or freed == 0 or redis.pcall('PEXPIRE', guard, breath) ~= 1) then
  redis.pcall('DEL', guard)
end
if mine and not stands then tell(name, seen and 'displaced' or 'gone') end
s.token, s.text = '-', ''
if s.place == '-' then redis.pcall('HDEL', record, name) else pcall(write, name, s, 1) end
return freed
