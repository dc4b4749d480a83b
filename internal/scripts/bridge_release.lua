-- bridge_release.lua: deletes key and guard, each only where it still holds the owner's value.
--
-- KEYS key       the lock's key
-- KEYS guard     its guard
-- KEYS streak    the streak of bridge holders, or the lock's key when none is kept
-- KEYS queue     the queue of those who wait, or the lock's key when none is kept
-- ARGV value     the bridge value
-- ARGV gap       the length of a gap in the streak in milliseconds, 0 when none is kept: a streak ends when the
--                key has been free for that long
-- ARGV ttl       the TTL in milliseconds: a streak has to outlast the next holder's first renewal
-- ARGV brief     1: the key was taken less than an eighth of a gap ago
-- ARGV [entry]   our entry in the queue, to be removed; left out, or '', when we have none
-- ARGV [breath]  for how long in milliseconds the guard stays behind; left out: not at all
-- Reply    {1}                 released: the key was ours to the end
--          {2}                 released: the key was absent (a stale DEL), the guard was ours
--          {-1, 0, 0, value}   displaced: the guard was ours and is deleted, the key holds that value
--          {0}                 nothing was ours
--
-- Atomic because between a GET and a DEL the TTL can end and a successor take the key, and because
-- nobody may find the key free and the guard still there. Whoever is first in the queue is told, and the
-- next one too where nobody hears it. It has no bound: giving back is always allowed.
-- Where neither MGET nor GET is allowed, nobody knows whose the keys are: the refusal is the script's error, and
-- nothing is deleted. Else the two keys are deleted first. Whatever is asked or written after that may be refused: it changes nothing.
-- Where old clients take a key that has gone for an expired one, the guard stays for a moment. An old client whose SETNX came
-- before this release, and whose GET comes after it, sends a GETSET; until that has come, no bridge client takes the key.
-- Without that moment it would overwrite the next holder's value.
-- What bridge_acquire.lua has written of the streak is good enough for one who had the lock for a moment
-- only. When the key is not ours any more a legacy client is about: then a streak begins anew.
-- include effects.lua
local found = redis.pcall('MGET', key, guard) -- nil also for what is no string
if found.err then
  for i, name in ipairs({key, guard}) do
    found[i] = redis.pcall('GET', name)
    local refusal = type(found[i]) == 'table' and found[i].err
    if refusal and not string.find(refusal, 'WRONGTYPE', 1, true) then return redis.call('GET', name) end
  end
end
local mine, whose = found[1] == value, found[2] == value
local seen
if mine then
  redis.call('DEL', key)
  if whose and (not breath or redis.pcall('PEXPIRE', guard, breath) ~= 1) then redis.call('DEL', guard) end
elseif whose then
  redis.call('DEL', guard)
  seen = found[1]
  if type(seen) ~= 'string' then
    seen = redis.pcall('TYPE', key).ok or 'unknown'
    if seen == 'none' then seen = nil end
  end
end
if whose and gap ~= '0' and not (mine and brief == '1') then
  local clock = redis.pcall('TIME')
  if not clock.err then
    local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
    local since = mine and string.match(redis.pcall('MGET', streak)[1] or '', '^(%d+) %d+$')
    redis.pcall('SET', streak, (since or string.format('%.0f', now)) .. string.format(' %.0f', now + gap), 'PX', ttl + gap)
  end
end
if queue ~= key and redis.pcall('EXISTS', queue) == 1 then
  if entry and entry ~= '' then redis.pcall('ZREM', queue, entry) end
  for _, entry in ipairs(redis.pcall('ZRANGE', queue, 0, 9)) do
    local name, channel = string.match(entry, '^(%S+) (.+)$')
    local heard = name and redis.pcall('PUBLISH', channel, name .. ' head')
    if type(heard) == 'number' and heard > 0 then break end
  end
end
if mine then return {1} end
if not whose then return {0} end
if seen then return {-1, 0, 0, seen} end
return {2}
