-- compare_del.lua: deletes a key only while it holds a given value.
--
-- KEYS key    the lock's key
-- ARGV value  the value that it must hold
-- Reply    1 deleted, 0 the key is absent, holds something else, or is not a string
--
-- Atomic because between a GET and a DEL the lease can end and another client can take the lock: the
-- DEL would then remove the successor's (the hazard "stale-delete").
-- A GET that is refused tells nothing about the key: the refusal is the script's error. Only WRONGTYPE says that the
-- key is not ours. The second GET raises the error with its line.
-- replica.lua: whether this server takes no writes: a replica, a master with too few replicas, or one that cannot save. It stands before
-- each of them that answer, without a write, that a lock is not ours. A replica may be behind its master, and a connection may outlive
-- the change. A master without replicas may have been replaced. Where a write was refused before, the answer would hide it.
--
-- replica(key, found) returns the refusal, nil where the server takes writes. found is what the key holds, nil or false where it is
-- absent. The SET sets nothing: NX where there is a key, XX where there is none. A user without the right to SET is not told.
local key = KEYS[1]
local function replica(key, found)
  local tried = redis.pcall('SET', key, '', 'PX', 1, found and 'NX' or 'XX')
  local why = tried and tried.err or ''
  for _, word in ipairs({'READONLY ', 'NOREPLICAS ', 'MISCONF '}) do
    if string.find(why, word, 1, true) then return tried end
  end
end
local value = ARGV[1]
local found = redis.pcall('GET', key)
if found == value then return redis.call('DEL', key) end
if type(found) == 'table' and not string.find(found.err, 'WRONGTYPE', 1, true) then return redis.call('GET', key) end
return replica(key, found) or 0
