-- compare_del.lua: deletes a key only while it holds a given value.
--
-- KEYS[1]  the lock's key
-- ARGV[1]  the value that it must hold
-- Reply    1 deleted, 0 the key is absent, holds something else, or is not a string
--
-- Atomic because between a GET and a DEL the lease can end and another client can take the lock: the
-- DEL would then remove the successor's (the hazard "stale-delete").
if redis.pcall('GET', KEYS[1]) == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0
