-- modern_share.lua: the part that the scripts of package modern share about clients who only poll. It stands before each of them, or
-- further down, behind clock.lua. Such clients would never find a key free that waiters hand on to each other. So, where a share is wanted, the
-- hand-overs stop after 4 shares for the length of one. Nobody of the queue takes the key meanwhile. The state is when the
-- present run of hand-overs began, or begins after the pause: ms of the server's clock. It expires when there is no contention.
--
-- Without a share of our own, state is the one of the bridge's gaps (bridge_yield.lua): a gap belongs to the old clients.
--
-- shared(state, ms) tells for how many more ms the key is left to others; pause(queue, state, ms), for a release, whether it
-- is to be left to them now. A release calls them with pcall: whatever has become of the state, it must still free the key.
-- run(state): what the state says; nil also for what is no number of ours.
local function run(state)
  local began = redis.pcall('GET', state)
  return type(began) == 'string' and #began < 16 and string.match(began, '^%d+$') and tonumber(began) or nil
end

local function shared(state, ms)
  local began
  if ms == '0' then
    local text = state and redis.pcall('GET', state)
    began = type(text) == 'string' and string.match(text, '^1 .* (%d+)$')
    began = began and tonumber(began)
  else
    began = run(state)
  end
  if not began then return 0 end
  look()
  return math.max(0, began - now)
end

local function pause(queue, state, ms)
  if ms == '0' or redis.pcall('EXISTS', queue) ~= 1 then return false end
  if not pcall(look) then return false end
  local share, began = tonumber(ms), run(state)
  if began and now - began >= 4 * share then
    redis.pcall('SET', state, string.format('%.0f', now + share), 'PX', 7 * share)
    return true
  end
  if not began then redis.pcall('SET', state, string.format('%.0f', now), 'PX', 7 * share) end
  return false
end
