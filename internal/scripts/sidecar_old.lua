-- sidecar_old.lua: SETNX, GETSET and SET of a service behind a sidecar, in stage legacy: what they always do, remembered.
--
-- KEYS[1]  the lock's key
-- KEYS[2]  its guard
-- KEYS[3]  the record of its sidecars
-- KEYS[4]  the lock's key
-- ARGV[1]  words, a space after each:
--          name     of the sidecar
--          form     nx, setnx (a SET with NX), getset or set
--          far      the number that stands for whoever else holds the lock
--          until    when the client takes its text for expired, in milliseconds of the sidecar's clock; 0: never
--          now      the sidecar's clock in milliseconds
--          owes     for how long a DEL is expected, in milliseconds from now
--          bound    the last millisecond of the server's clock at which this command may act, 0 for none
--          unit     of the dialect: ms, s, float or ns
--          layout   of it
--          text     what the client writes: the rest
-- Reply    as of the command itself; held after the bound, and where a guard stands: 0, nil, far, an error HELD
--
-- Atomic for the reason of gated_setnx.lua. What the service writes here is remembered, so that a DEL that comes when the stage has
-- changed deletes this value, and no lock of another.
-- A GETSET may win or lose, and only the client knows. One that finds an expired value, or nothing, counts as won: too many
-- outstanding grants delay a release, too few would free a lock in use.
if old then return old end
local name, form, far, ends, host, owes, bound, unit, layout, text_ =
  string.match(ARGV[1], '^(%S+) (%S+) (%S+) (%d+) (%d+) (%d+) (%d+) (%S+) (%S+) (.*)$')
look()
local gone = late(bound)
if gone then tell(name, 'late') end
local there = redis.call('EXISTS', key) == 1
if gone or redis.call('EXISTS', guard) == 1 or there and (form == 'nx' or form == 'setnx') then
  if form == 'nx' then return 0 end
  if form == 'setnx' then return false end
  if form == 'getset' then return far end
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
s.token, s.ends, s.text, s.place = '=', ends, text_, '-'
write(name, s, tonumber(owes))
redis.call('SET', key, text_)
if form == 'nx' then return 1 end
if form == 'getset' then return before end
return redis.status_reply('OK')
