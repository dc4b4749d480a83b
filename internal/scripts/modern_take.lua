-- modern_take.lua: takes a key that is free or ours already; asking twice is asking once.
--
-- KEYS[1]  the lock's key
-- KEYS[2]  the fencing counter, or the lock's key when none is wanted
-- ARGV[1]  the token
-- ARGV[2]  the TTL in milliseconds
-- ARGV[3]  the counter's TTL in milliseconds, 0 when none is wanted
-- ARGV[4]  1: the client's first attempt: it is going to use the queue, and must be able to give back; left out
--          otherwise
-- Reply    {1, fencing token or 0, 0} taken; {0, remaining ms, 0} held by another (-1: no TTL)
--
-- Atomic because the fencing token must be drawn by the holder, in the order of holding. The counter
-- never goes back while it lives; when it has expired, the server's clock in microseconds is far
-- ahead of every count that a lock per microsecond could have reached.
-- GET comes by pcall: a key of any type that another holds is held, without a WRONGTYPE error. Any other refusal of
-- GET is the script's error.
-- A user who may take a lock and may not delete it would leave each lock until its TTL ends. So the first attempt asks for
-- the right: it deletes the key where there is none.
-- The key is written last: where the clock or the counter is refused, nothing is taken.
if old and (ARGV[3] ~= '0' or ARGV[4]) then return old end -- without fencing and queue it needs no clock
local value = redis.pcall('GET', KEYS[1])
if type(value) == 'table' and not string.find(value.err, 'WRONGTYPE', 1, true) then return redis.call('GET', KEYS[1]) end
if not value then
  if ARGV[4] then redis.call('DEL', KEYS[1]) end
  local fence = next_fence(KEYS[2], ARGV[3])
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
  return {1, fence, 0}
end
if value == ARGV[1] then
  local fence = next_fence(KEYS[2], ARGV[3])
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return {1, fence, 0}
end
return {0, redis.call('PTTL', KEYS[1]), 0}
