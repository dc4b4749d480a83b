-- queue_grant.lua: the queue of a key. Scripts that take a key, wait for it or give it back include it, at stages bridge
-- and modern. It stands before each of them, or further down. What comes before it then is what the script does most often,
-- and pays for none of this.
--
-- The queue is a sorted set beside the key. A member is one waiting process and says how it wants the lock:
-- "<claim> <until> <guarded> <channel> <token>".
--   claim    for how many milliseconds it may own the key before it has spoken
--   until    the last millisecond of the server's clock at which it may be given the key, 0 for none: a member of a
--            namespace may get a lock only within its lease
--   guarded  1 for a bridge client: the guard goes with the key, and holds the same; 0 for a token client
--   channel  where it listens; '-' for one that listens nowhere and looks at the key now and then
--   token    what the key will hold; it may hold blanks
-- The score is its ticket, drawn from the server's clock in microseconds and never twice for one key. So a late message
-- about an earlier grant cannot pass for a new one.
--
-- join(queue, ttl, entry, stood) gives the entry a place at the end, unless it has one; the entry stood, if there is one,
-- leaves it its place. Returns the ticket and how many stand before it, or nil and why not.
--
-- grant(key, queue, guard, fence, fence_ttl, by) gives the key to the first waiter that still listens and may have it. It
-- tells whether there was one. by says who gives it:
--   value    what the key holds, of a holder; nil where nobody has the key
--   guarded  the guard holds that too, and is the caller's
--   own      a token that is not passed over and given nothing: it is the caller's turn
-- A bridge client may be given a key that nobody had. It is told to look, and not that it has the key: an old client may have
-- had the key a moment ago, and then the taker has to settle.
--
-- NUMSUB tells how many connections listen: a waiter whose process is gone is passed over at once, at no cost in time. One
-- that is stopped but connected costs its claim. The message goes out before the SET. So the waiter reads it before the
-- invalidation that the SET causes, and need not ask the server again. NUMSUB is asked before anything is sent. PUBLISH counts
-- too, but only when the message is out. Both count the listeners of this server alone. Others hear as well: listeners at a
-- replica, and at a master that has become one, as connections may outlive that. A waiter cannot be passed over after a
-- message was sent: it would hear it, take the key for its own, and not have it. In a cluster every node passes the message
-- on: nobody is passed over there, nor where NUMSUB is refused, and a waiter whose process is gone costs its claim.
--
-- first(queue) tells the first waiter who listens that it is.
-- clock.lua and fence.lua come before it.
--
-- Everything but the key's own commands is called with pcall. The queue or the counter may be lost, or the right to publish: a
-- release must still free the key.
local function join(queue, ttl, entry, stood)
  local ticket, before = redis.pcall('ZSCORE', queue, entry), redis.pcall('ZRANK', queue, entry)
  if type(ticket) == 'table' then return nil, ticket end
  if type(before) == 'table' then return nil, before end
  local lives = redis.pcall('PEXPIRE', queue, ttl) -- before the ZADD: where it is refused, no queue is made
  if type(lives) == 'table' then return nil, lives end
  if not ticket then
    local place = stood and stood ~= '' and redis.pcall('ZSCORE', queue, stood)
    ticket = place or string.format('%.0f', after(tonumber(redis.pcall('ZRANGE', queue, -1, -1, 'WITHSCORES')[2] or 0)))
    local added = redis.pcall('ZADD', queue, ticket, entry)
    if type(added) == 'table' then return nil, added end
    if place then redis.pcall('ZREM', queue, stood) end -- after the ZADD: a queue that loses its last member loses its TTL
    if lives == 0 then redis.pcall('PEXPIRE', queue, ttl) end
    before = redis.pcall('ZRANK', queue, entry)
  end
  return tonumber(ticket), before
end

local function listens(channel)
  if channel == '-' then return true end -- it finds its token on the key when it looks
  local there = redis.pcall('PUBSUB', 'NUMSUB', channel)
  if there[2] ~= 0 then return true end
  local info = redis.pcall('INFO', 'cluster')
  if type(info) == 'string' then return string.find(info, 'cluster_enabled:1', 1, true) ~= nil end
  if string.find(info.err or '', 'is not supported', 1, true) then return false end -- a server without the section is alone
  info = redis.pcall('CLUSTER', 'INFO') -- a user without dangerous commands may ask this
  return not string.find(info.err or '', 'support disabled', 1, true)
end

local function in_time(last) return last == '0' or pcall(look) and now <= tonumber(last) end

-- guard_for(guard, token, claim, guarded, ours) makes the guard right before anybody is told: a token client's grant takes ours
-- away; a bridge client's sets one where there is none. Where there is one, it asks for the right to set ours, by a SET that
-- sets nothing. Returns whether that went well, and whether it was set. Another's guard stays: that holder has lost its key,
-- and may not know it yet.
local function guard_for(guard, token, claim, guarded, ours)
  if guarded == '0' then return not ours or type(redis.pcall('DEL', guard)) == 'number', false end
  if ours and not redis.pcall('SET', guard, token, 'NX') then return true, false end
  local set = redis.pcall('SET', guard, token, 'NX', 'PX', claim)
  local done = set and set.ok ~= nil
  return done, done
end

local function grant(key, queue, guard, fence, fence_ttl, by)
  while true do
    local head = redis.pcall('ZRANGE', queue, 0, 0, 'WITHSCORES') -- and not ZPOPMIN, which servers have since Redis 5
    if head.err or not head[1] then return false end
    local claim, last, guarded, channel, token = string.match(head[1], '^(%d+) (%d+) ([01]) (%S+) (.+)$')
    local own = token and token == by.own
    local gets = token and not own and in_time(last) and listens(channel)
    local n, set = 0, false
    if gets then
      -- A waiter that is told must get the key. So the right to set it is asked for first, by a SET that sets
      -- nothing: the key is there. (Where it is not, the caller has asked already.)
      local may
      may, n = pcall(next_fence, fence, fence_ttl)
      may = may and not (by.value and redis.pcall('SET', key, token, 'NX'))
      if may then may, set = guard_for(guard, token, claim, guarded, by.guarded) end
      if not may then return false end -- it keeps its place, and has to find the key free, and ask
    end
    if redis.pcall('ZREM', queue, head[1]) ~= 1 then
      if set then redis.pcall('DEL', guard) end
      return false
    end
    if own then return false end
    if gets then
      local word = string.format('%s %.0f ', head[2], n)
      if guarded == '1' and not by.value then word = 'head ' end
      local heard = channel == '-' and 0 or redis.pcall('PUBLISH', channel, word .. token)
      if type(heard) == 'number' then -- else refused: nothing was sent to anybody
        if guarded == '1' and not set then redis.call('SET', guard, token, 'PX', claim) end
        redis.call('SET', key, token, 'PX', claim)
        return true
      end
      if set then redis.pcall('DEL', guard) end
    end
  end
end

local function first(queue)
  for _, entry in ipairs(redis.pcall('ZRANGE', queue, 0, 9)) do
    local channel, token = string.match(entry, '^%d+ %d+ [01] (%S+) (.+)$')
    local heard = token and channel ~= '-' and redis.pcall('PUBLISH', channel, 'head ' .. token)
    if type(heard) == 'number' and heard > 0 then return end
  end
end
