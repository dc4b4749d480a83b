-- sidecar_old.lua: SETNX, GETSET and SET of a service behind a sidecar, in stage legacy: what they always do, remembered.
--
-- KEYS key        the lock's key
-- KEYS guard      its guard
-- KEYS record     the record of its sidecars
-- WORD name       of the sidecar
-- WORD shape      nx, setnx (a SET with NX), getset or set
-- WORD far        the number that stands for any other holder of the lock
-- WORD ends       when the client takes its text for expired, in milliseconds of the sidecar's clock; 0: never
-- WORD host       the sidecar's clock in milliseconds
-- WORD owes       for how long a DEL is expected, in milliseconds from now
-- WORD not_after  the last millisecond of the server's clock at which this command may act, 0 for none
-- WORD unit       of the dialect: ms, s, float or ns
-- WORD layout     of it
-- WORD written    what the client writes: the rest
-- Reply    as of the command itself; held after the bound, and where a guard stands: 0, nil, far, an error HELD
--
-- Atomic for the reason of gated_write.lua. What the service writes here is remembered. So a DEL that comes when the stage has
-- changed deletes this value, and no lock of another.
-- A GETSET may win or lose, and only the client knows. One that finds an expired value, or nothing, counts as won: too many
-- outstanding grants delay a release, too few would free a lock in use.
-- include effects.lua
-- include clock.lua
-- include bridge_shared.lua
-- include sidecar_shared.lua
if old_server then return old_server end
look()
local gone = late(not_after)
if gone then tell(name, 'late') end
local there = redis.call('EXISTS', key) == 1
if gone or redis.call('EXISTS', guard) == 1 or there and (shape == 'nx' or shape == 'setnx') then
  if shape == 'nx' then return 0 end
  if shape == 'setnx' then return false end
  if shape == 'getset' then return far end
  return redis.error_reply('HELD ' .. key .. ' is held by a token, or the lease of this sidecar is over')
end
local s, before = read(name), false
if there then
  before = redis.call('GET', key)
  local due = expiry(before, unit, layout)
  there = not due or due >= tonumber(host)
end
give_up(s)
if not there then s.owed[#s.owed + 1] = now + owes end
s.token, s.ends, s.text, s.since, s.place, s.settle, s.stands = '=', ends, written, now, '-', 0, 0
write(name, s, tonumber(owes))
redis.call('SET', key, written)
if shape == 'nx' then return 1 end
if shape == 'getset' then return before end
return redis.status_reply('OK')
