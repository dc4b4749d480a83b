-- modern_release.lua: gives a key that holds our token to the next waiter, or deletes it.
--
-- KEYS[1]  the lock's key
-- KEYS[2]  the key's queue
-- KEYS[3]  the fencing counter, or the lock's key when none is wanted
-- KEYS[4]  where the share's state is, or the lock's key when none is wanted
-- ARGV[1]  the token
-- ARGV[2]  the counter's TTL in milliseconds, 0 when none is wanted
-- ARGV[3]  our entry in the queue, to be removed; '' when we have none
-- ARGV[4]  the share in milliseconds that clients have who only poll, 0 for none
--          Where neither counter nor entry nor share is wanted, KEYS[3], KEYS[4] and ARGV[2] to ARGV[4]
--          are left out: every argument of a script costs the server as much as a short command.
-- Reply    2 handed to the next waiter, 1 deleted, 0 the key is absent, holds something else, or is
--          not a string
--
-- Atomic because between a GET and a DEL the lease can end and a successor take the key, and because
-- a key that was free between two holders could be taken by whoever comes along: to every other
-- client the key is simply held, by one token and then by the next.
-- The SET with NX, as in modern_grant.lua, sets nothing: it asks for the right to hand the key on before
-- anybody is told.
-- A GET that is refused tells nothing about the key: the refusal is the script's error. Only WRONGTYPE says that the
-- key is not ours. The second GET raises the error with its line.
local value = redis.pcall('GET', KEYS[1])
if type(value) == 'table' and not string.find(value.err, 'WRONGTYPE', 1, true) then return redis.call('GET', KEYS[1]) end
local popped
if not ARGV[2] then
  if value ~= ARGV[1] then return 0 end
  popped = redis.pcall('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES') -- see modern_grant.lua
  if popped.err or not popped[1] or redis.pcall('ZREM', KEYS[2], popped[1]) ~= 1 then return redis.call('DEL', KEYS[1]) end
  local token, claim, channel = string.match(popped[1], '^(%S+) (%d+) (.+)$')
  if token and (redis.pcall('PUBSUB', 'NUMSUB', channel)[2] or 0) > 0 and not redis.pcall('SET', KEYS[1], token, 'NX') then
    local heard = redis.pcall('PUBLISH', channel, token .. ' ' .. popped[2] .. ' 0')
    if type(heard) == 'number' then
      redis.call('SET', KEYS[1], token, 'PX', claim)
      return 2
    end
  end
end
-- include modern_grant.lua
if popped then
  if grant(KEYS[1], KEYS[2], KEYS[1], '0', popped) then return 2 end
  return redis.call('DEL', KEYS[1])
end
if ARGV[3] ~= '' then
  local head = redis.pcall('ZRANGE', KEYS[2], 0, 0)
  redis.pcall('ZREM', KEYS[2], ARGV[3])
  if head[1] == ARGV[3] then first(KEYS[2]) end -- it watches the key from here on
end
if value ~= ARGV[1] then return 0 end
if pause(KEYS[2], KEYS[4], ARGV[4]) then
  redis.call('DEL', KEYS[1])
  first(KEYS[2]) -- it learns how long to keep off
  return 1
end
if grant(KEYS[1], KEYS[2], KEYS[3], ARGV[2]) then
  return 2
end
return redis.call('DEL', KEYS[1])
