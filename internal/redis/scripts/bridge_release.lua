-- bridge_release.lua: deletes key and guard, each only where it still holds the owner's value.
--
-- KEYS key       the lock's key
-- KEYS guard     its guard
-- KEYS yield     the state of the gaps for old clients, or the lock's key when none are left
-- KEYS queue     the queue of those who wait, or the lock's key when none is kept
-- KEYS [fence]   the fencing counter, for the next holder; left out when none is wanted
-- ARGV value     the bridge value
-- ARGV gap       the length of a gap for old clients in milliseconds, 0 for none: see bridge_yield.lua
-- ARGV [hand]       1: the lock may be handed to the first in the queue. Not so an acquisition that is given up before it has
--                   settled, nor a place in the queue
-- ARGV [held]       for how many whole milliseconds the lock was held, 0 when left out
-- ARGV [behind]     how many wait for the key without an entry in the queue, as far as we know; 0 when left out
-- ARGV [breath]     for how long in milliseconds the guard stays behind; 0 or left out: not at all
-- ARGV [fence_ttl]  the fencing counter's TTL in milliseconds, 0 when none is wanted
-- ARGV [entry]      our entry in the queue, to be removed; '' when we have none
-- ARGV [stood]      another one of ours; '' when there is none
-- Reply    1                   released: the key was ours to the end
--          3                   the same, and the lock is that of the first in the queue now
--          2                   released: the key was absent (a stale DEL), the guard was ours
--          {-1, 0, 0, value}   displaced: the guard was ours, the key holds that value. With hand the guard stays, else it is deleted
--          0                   nothing was ours
--
-- Atomic for three reasons. Between a GET and a DEL the TTL can end and a successor take the key. Nobody may find the key free
-- and the guard still there. A lock that is handed to the first in the queue is never free. It has no bound: giving back is
-- always allowed. A lock is handed on only while it is ours on both keys, and no gap for old clients begins. Else the first in
-- the queue is told that the key is free. If nobody hears that, the next one is told.
-- A displaced holder must be told. If this reply is lost, the next release finds the guard and tells it. So the guard stays until
-- that holder sends a release without hand.
-- A place in the queue may come back after its value was given back: by a command that was late, or with a queue that went back in
-- time. Its process is told that it is the first, has nothing, and sends this script. It takes the place out, also behind places of
-- processes that are gone, which first() passes over. Else it would be told again at once, and send this again.
-- Where GET is not allowed, nobody knows whose the keys are: the refusal is the script's error, and
-- nothing is deleted. Any other question or write may be refused: the lock is still given back. Where old clients take a key
-- that has gone for an expired one, the guard stays for a moment. An old client whose SETNX came before this release, and
-- whose GET comes after it, sends a GETSET; until that has come, no bridge client takes the key. Without that moment it would
-- overwrite the next holder's value. The guard does not hold our value in that moment: a renewal that is late, by another
-- connection, would take our guard without a key for one to be repaired. Nobody would ever give that key back.
-- The usual case is a key that nobody waits for, without a state of gaps. It was held for less than a part of a gap. It comes
-- first, and without a function: to define one costs a fifth of a command.
-- include effects.lua
local found = redis.pcall('MGET', key, guard) -- one command for the usual answer: both are ours
local mine, seen, whose = found[1] == value, value, found[2] == value
local breathes = breath and breath ~= '0'
local brief = gap == '0' or not held or 32 * held < gap + 0
local others = mine and whose and brief and redis.pcall('EXISTS', yield, queue)
local unwanted = (yield == key and 1 or 0) + (queue == key and 1 or 0)
if others == unwanted and not breathes then
  redis.call('DEL', key, guard)
  return 1
end
-- include replica.lua
local function holds(name)
  local seen = redis.pcall('GET', name)
  if type(seen) ~= 'table' then return seen == value, seen end
  if string.find(seen.err, 'WRONGTYPE', 1, true) then return false, redis.pcall('TYPE', name).ok or 'unknown' end
  return nil
end

if not mine or not whose then
  mine, seen = holds(key)
  whose = holds(guard)
  if mine == nil or whose == nil then return redis.call('GET', mine == nil and key or guard) end
  local refusal = not mine and replica(key, seen)
  if refusal then return refusal end
end

-- free() deletes what is ours.
local function free()
  if mine and whose and not breathes then
    redis.call('DEL', key, guard)
  elseif mine then
    redis.call('DEL', key)
    if whose and redis.pcall('SET', guard, 'breath', 'PX', breath).err then redis.call('DEL', guard) end
  elseif whose then
    if not seen or hand ~= '1' then redis.call('DEL', guard) end
    if seen then return {-1, 0, 0, seen} end
  end
  return mine and 1 or whose and 2 or 0
end

local yielding = gap ~= '0' and mine and whose
if (others or redis.pcall('EXISTS', yield, queue)) == (seen and unwanted or 0) and (not yielding or brief) then return free() end
-- include clock.lua
-- include fence.lua
-- include queue_grant.lua
-- include bridge_yield.lua
if queue ~= key and entry then redis.pcall('ZREM', queue, entry, stood or '') end
local waiters = queue ~= key and redis.pcall('ZRANGE', queue, 0, 9) or {}
if hand == '1' and not mine and not whose then -- see above
  for _, entry in ipairs(waiters) do
    if string.match(entry, '^%d+ %d+ [01] %S+ (.+)$') == value then redis.pcall('ZREM', queue, entry) end
  end
end
local begins = false
if yielding and pcall(look) then
  gap = tonumber(gap)
  begins = yields(tonumber(held or 0), #waiters + (behind or 0))
end
if mine and whose and hand == '1' and not begins and not old_server and #waiters > 0
  and grant(key, queue, guard, fence or key, fence_ttl or '0', {value = value, guarded = true}) then return 3 end
local reply = free()
if queue ~= key then first(queue) end
return reply
