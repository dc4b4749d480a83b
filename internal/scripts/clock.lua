-- clock.lua: the clock, the bound of a member, and fencing tokens. It stands before each of them that need one.
--
-- The server's TIME is the only clock. It decides what is expired, for how long a client has to wait,
-- and whether a command comes too late. `now` is in milliseconds since the Unix epoch; a double holds
-- that exactly. It is read by look(), once, where it is needed.
local time, now
local function look()
  if now then return end
  time = redis.call('TIME')
  now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

-- late(bound): a member of a namespace may act only within its lease. The lease ends at `bound` on this
-- clock ('0' or nil: no bound). It is checked here: a command may be delayed on its way, or come from a
-- process that had been stopped. However late it comes, it is refused: late gives the error to answer with, false in time.
local function late(bound)
  if not bound or bound == '0' then return false end
  look()
  return now > tonumber(bound) and {err = 'STAGE the lease of this member of the namespace is over'}
end

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
