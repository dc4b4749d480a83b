-- modern_release.lua: gives a key that holds our token to the next waiter, or deletes it.
--
-- KEYS key          the lock's key
-- KEYS queue        the key's queue
-- KEYS guard        the guard of the bridge: a bridge client that waits gets it with the key
-- KEYS [fence]      the fencing counter, or the lock's key when none is wanted
-- KEYS [state]      where the share's state is, or the lock's key when none is wanted
-- ARGV token        the token
-- ARGV [fence_ttl]  the counter's TTL in milliseconds, 0 when none is wanted
-- ARGV [entry]      our entry in the queue, to be removed; '' when we have none
-- ARGV [share]      the share in milliseconds that clients have who only poll, 0 for none
--                   Where neither counter nor entry nor share is wanted, what is in brackets is left out: every
--                   argument of a script costs the server as much as a short command.
-- Reply    2 handed to the next waiter, 1 deleted, 0 the key is absent, holds something else, or is
--          not a string
--
-- Atomic because between a GET and a DEL the lease can end and a successor take the key. And a newcomer could take a
-- key that is free between two holders. To every other client the key is simply held, by one token and then by the
-- next.
-- The SET with NX, as in queue_grant.lua, sets nothing: it asks for the right to hand the key on before
-- anybody is told.
-- A GET that is refused tells nothing about the key: the refusal is the script's error. Only WRONGTYPE says that the
-- key is not ours. The second GET raises the error with its line.
-- include effects.lua
-- include replica.lua
local held = redis.pcall('GET', key)
if type(held) == 'table' and not string.find(held.err, 'WRONGTYPE', 1, true) then return redis.call('GET', key) end
if not fence_ttl then
  if held ~= token then return replica(key, held) or 0 end
  local head = redis.pcall('ZRANGE', queue, 0, 0, 'WITHSCORES') -- see queue_grant.lua
  if head.err or not head[1] then return redis.call('DEL', key) end
  local claim, channel, waiter = string.match(head[1], '^(%d+) 0 0 (%S+) (.+)$') -- a token client
  if waiter and (redis.pcall('PUBSUB', 'NUMSUB', channel)[2] or 0) > 0 and not redis.pcall('SET', key, waiter, 'NX') then
    if redis.pcall('ZREM', queue, head[1]) ~= 1 then return redis.call('DEL', key) end
    local heard = redis.pcall('PUBLISH', channel, head[2] .. ' 0 ' .. waiter)
    if type(heard) == 'number' then
      redis.call('SET', key, waiter, 'PX', claim)
      return 2
    end
  end
end
-- include clock.lua
-- include fence.lua
-- include queue_grant.lua
local function free() -- somebody may wait who cannot be given the key, and has to be told
  redis.call('DEL', key)
  first(queue)
  return 1
end
if not fence_ttl then
  if grant(key, queue, guard, key, '0', {value = token}) then return 2 end
  return free()
end
-- include modern_share.lua
if entry and entry ~= '' then
  local head = redis.pcall('ZRANGE', queue, 0, 0)
  redis.pcall('ZREM', queue, entry)
  if head[1] == entry then first(queue) end -- it watches the key from here on
end
if held ~= token then return replica(key, held) or 0 end
if not pause(queue, state, share or '0') and grant(key, queue, guard, fence, fence_ttl, {value = token}) then return 2 end
return free()
