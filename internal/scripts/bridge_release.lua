-- bridge_release.lua: deletes key and guard, each only where it still holds the owner's value.
--
-- KEYS key       the lock's key
-- KEYS guard     its guard
-- KEYS yield     the state of the gaps for old clients, or the lock's key when none are left
-- KEYS queue     the queue of those who wait, or the lock's key when none is kept
-- ARGV value     the bridge value
-- ARGV gap       the length of a gap for old clients in milliseconds, 0 for none: see bridge_yield.lua
-- ARGV [held]    for how many whole milliseconds the lock was held, 0 when left out
-- ARGV [behind]  how many wait for the key without an entry in the queue, as far as we know; 0 when left out
-- ARGV [entry]   our entry in the queue, to be removed; left out, or '', when we have none
-- ARGV [breath]  for how long in milliseconds the guard stays behind; left out: not at all
-- Reply    1                   released: the key was ours to the end
--          2                   released: the key was absent (a stale DEL), the guard was ours
--          {-1, 0, 0, value}   displaced: the guard was ours and is deleted, the key holds that value
--          0                   nothing was ours
--
-- Atomic because between a GET and a DEL the TTL can end and a successor take the key, and because
-- nobody may find the key free and the guard still there. Whoever is first in the queue is told, and the
-- next one too where nobody hears it. It has no bound: giving back is always allowed.
-- Where GET is not allowed, nobody knows whose the keys are: the refusal is the script's error, and
-- nothing is deleted. Else the two keys are deleted first. Whatever is asked or written after that may be refused: it changes nothing.
-- Where old clients take a key that has gone for an expired one, the guard stays for a moment. An old client whose SETNX came
-- before this release, and whose GET comes after it, sends a GETSET; until that has come, no bridge client takes the key.
-- Without that moment it would overwrite the next holder's value.
-- A key that nobody waits for, that was held for less than a millisecond and that has no state of gaps is the usual case:
-- it takes three commands.
-- include effects.lua
local function holds(name)
  local seen = redis.pcall('GET', name)
  if type(seen) ~= 'table' then return seen == value, seen end
  if string.find(seen.err, 'WRONGTYPE', 1, true) then return false, redis.pcall('TYPE', name).ok or 'unknown' end
  return nil
end

local mine, seen = holds(key)
local whose = holds(guard)
if mine == nil or whose == nil then return redis.call('GET', mine == nil and key or guard) end
if mine and whose and not breath then
  redis.call('DEL', key, guard)
elseif mine then
  redis.call('DEL', key)
  if whose and redis.pcall('PEXPIRE', guard, breath) ~= 1 then redis.call('DEL', guard) end
elseif whose then
  redis.call('DEL', guard)
end
if mine or not whose then seen = nil end
local code = mine and 1 or seen and -1 or whose and 2 or 0
local yielding = gap ~= '0' and mine and whose
if redis.pcall('EXISTS', yield, queue) == 0 and (not held or held == '0' or not yielding) then
  return seen and {code, 0, 0, seen} or code
end
if entry and entry ~= '' then redis.pcall('ZREM', queue, entry) end
local waiters = queue ~= key and redis.pcall('ZRANGE', queue, 0, 9) or {}
local clock = yielding and redis.pcall('TIME')
if clock and not clock.err then
  local now = tonumber(clock[1]) * 1000 + math.floor(tonumber(clock[2]) / 1000)
  gap = tonumber(gap)
-- include bridge_yield.lua
  yields(tonumber(held or 0), #waiters + (behind or 0))
end
for _, entry in ipairs(waiters) do
  local name, channel = string.match(entry, '^(%S+) (.+)$')
  local heard = name and redis.pcall('PUBLISH', channel, name .. ' head')
  if type(heard) == 'number' and heard > 0 then break end
end
return seen and {code, 0, 0, seen} or code
