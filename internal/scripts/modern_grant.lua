-- modern_grant.lua: the part that the queueing scripts share. It stands before each of them.
-- Where one includes it further down, what comes before that is what it does most often, and pays for
-- none of this.
--
-- The queue of a key is a sorted set beside it. A member is one waiting process, written
-- "<token> <claim ms> <channel>": the token that it will hold the key with, for how long it may own
-- the key before it has spoken, and the channel that it listens on; '-' for one that listens on none and looks
-- at the key now and then. The score is its ticket: drawn
-- from the server's clock in microseconds and never twice for one key, so that a late message about an
-- earlier grant cannot pass for a new one.
--
-- grant(key, queue, fence, fencettl) gives the key to the first waiter that still listens, and tells
-- whether there was one; head, where it is given, is a waiter that was taken out of the queue already; own
-- is a token that it does not pass over and gives nothing to: it is the caller's turn.
-- NUMSUB tells how many connections listen: a waiter whose
-- process is gone is passed over at once, at no cost in time. One that is stopped but connected costs
-- its claim. The message goes out before the SET, so that the waiter reads it before the invalidation
-- that the SET causes, and does not ask the server about what it already knows.
--
-- It is asked before anything is sent, and not PUBLISH afterwards, because both count the listeners of this
-- server alone, and others hear as well: those at a replica, and those at a master that has become one, whose
-- connections may outlive that. Whom a message has been sent to cannot be passed over any more: it hears, takes the
-- key for its own, and does not have it.
--
-- In a cluster every node passes the message on: nobody is passed over there, nor where NUMSUB is refused, and a
-- waiter whose process is gone costs its claim.
--
-- first(queue) tells the first waiter that it is.
--
-- shared(state, ms) tells for how many more ms the key is left to others; pause(queue, state, ms), for
-- a release, whether it is to be left to them now. Clients that only poll would
-- never find a key free that waiters hand on to each other; so, where a share is wanted, the hand-overs
-- stop after 4 shares for the length of one, and nobody of the queue takes the key meanwhile. The state
-- is the time, on the server's clock in ms, when the present run of hand-overs began, or will begin
-- after the pause; it expires when there is no contention.
--
-- Everything but the key's own commands is called with pcall: whatever has become of the queue, of the
-- counter, of the share's state or of the right to publish, a release must still free the key.
-- include modern_fence.lua
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

local function grant(key, queue, fence, fencettl, head, own)
  while true do
    if not head then
      head = redis.pcall('ZRANGE', queue, 0, 0, 'WITHSCORES') -- and not ZPOPMIN, which servers have since Redis 5
      if head.err or not head[1] or redis.pcall('ZREM', queue, head[1]) ~= 1 then return false end
    end
    local token, claim, channel = string.match(head[1], '^(%S+) (%d+) (.+)$')
    if token == own and own then return false end
    if token and listens(channel) then
      local drawn, n = pcall(next_fence, fence, fencettl)
      -- A waiter that is told must get the key. So the right to set it is asked for first, by a SET that sets
      -- nothing: the key is there. (One who gives its own token has asked already; there it is not.)
      if not drawn or not own and redis.pcall('SET', key, token, 'NX') then -- it has to find the key free, and ask
        redis.pcall('ZADD', queue, head[2], head[1])
        return false
      end
      local heard = redis.pcall('PUBLISH', channel, string.format('%s %s %.0f', token, head[2], n))
      if type(heard) == 'number' then -- else refused: nothing was sent to anybody
        redis.call('SET', key, token, 'PX', claim)
        return true
      end
    end
    head = nil
  end
end

local function first(queue)
  local head = redis.pcall('ZRANGE', queue, 0, 0)
  local token, channel = string.match(head[1] or '', '^(%S+) %d+ (.+)$')
  if token then redis.pcall('PUBLISH', channel, token .. ' head') end
  return token
end

-- run(state): what the state says; nil also for what is no number of ours.
local function run(state)
  local began = redis.pcall('GET', state)
  return type(began) == 'string' and #began < 16 and string.match(began, '^%d+$') and tonumber(began) or nil
end

local function shared(state, ms)
  if ms == '0' then return 0 end
  local began = run(state)
  if not began then return 0 end
  local now = redis.call('TIME')
  return math.max(0, began - tonumber(now[1]) * 1000 - math.floor(tonumber(now[2]) / 1000))
end

local function pause(queue, state, ms)
  if ms == '0' or redis.pcall('EXISTS', queue) ~= 1 then return false end
  local share, time = tonumber(ms), redis.pcall('TIME')
  if time.err then return false end
  local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
  local began = run(state)
  if began and now - began >= 4 * share then
    redis.pcall('SET', state, string.format('%.0f', now + share), 'PX', 7 * share)
    return true
  end
  if not began then redis.pcall('SET', state, string.format('%.0f', now), 'PX', 7 * share) end
  return false
end
