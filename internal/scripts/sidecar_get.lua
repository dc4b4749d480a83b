-- sidecar_get.lua: GET of a service behind a sidecar, and a GETSET that plants nothing.
--
-- KEYS key        the lock's key
-- KEYS guard      its guard
-- KEYS record     the record of its sidecars
-- WORD name       of the sidecar
-- WORD shape      get; raw: get in stage legacy, where a value of others is shown as it is; lose: a GETSET that never wins;
--             extend: one that extends a lock of the same owner
-- WORD far        the number that stands for any other holder of the lock: live on any clock
-- WORD host       the sidecar's clock in milliseconds
-- WORD ttl        in milliseconds, for extend
-- WORD ends       for extend, see sidecar_take.lua
-- WORD not_after for extend: the last millisecond of the server's clock at which it may act, 0 for none
-- WORD whose      the part of the text that stands for its owner, of extend; '-' for none
-- WORD written    of extend: the rest
-- Reply    nil: the key is absent; far for lose and extend. The service's own text while its client takes it for live; extend: the text
--          before. Else far.
--
-- Atomic because the key and what the record says of it are true of one moment only.
-- A GETSET that plants nothing is never told nil. There are clients that take nothing for an expiry long past: they would win, while the
-- key is free for everybody else. Such a GETSET comes when the text has expired between two commands of the client, and the key with it.
-- No expired value is ever shown: so the clients send no GETSET to take a lock over. What else stands on the key is of another
-- kind, or of another clock, than the client can judge.
-- include effects.lua
-- include clock.lua
-- include bridge_shared.lua
-- include sidecar_shared.lua
if old_server then return old_server end
local seen = redis.call('GET', key)
if not seen then return (shape == 'lose' or shape == 'extend') and far end
local s = read(name)
if seen ~= held(s) then return shape == 'raw' and seen or far end
if s.ends ~= '0' and tonumber(s.ends) < tonumber(host) then return far end
if shape == 'lose' then return far end
if shape ~= 'extend' then return s.text end
if late(not_after) or s.token == '=' or string.sub(s.text, 1, #whose) ~= whose then return far end
local before = s.text
s.text, s.ends = written, ends
prolong(s, ttl)
redis.call('PEXPIRE', key, ttl)
redis.call('PEXPIRE', guard, ttl)
return before
