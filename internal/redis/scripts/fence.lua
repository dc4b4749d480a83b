-- fence.lua: fencing tokens, and the tickets of a queue. It stands before each of them that need one, behind clock.lua.

-- after(last) is a number above the last one, and never less than the clock in microseconds.
local function after(last)
  look()
  return math.max(last + 1, tonumber(time[1]) * 1000000 + tonumber(time[2]))
end

-- next_fence(counter, ttl): the next fencing token. It is above the clock's microseconds and above the last one, which
-- the counter holds for ttl. It is 0 when ttl is '0' or nil: then no counter is wanted. A counter that is no whole number up
-- to 9e15 is not one of ours: it counts as none. One that this user may not read raises an error: a token without it could be
-- lower than the last one.
local function next_fence(counter, ttl)
  if not ttl or ttl == '0' then return 0 end
  local last = tonumber(string.match(redis.call('MGET', counter)[1] or '', '^%d+$') or 0) -- MGET: nil for what is no string
  local n = after(last <= 9e15 and last or 0)
  redis.call('SET', counter, string.format('%.0f', n), 'PX', ttl)
  return n
end
