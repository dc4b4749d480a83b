-- clock.lua: the clock, and the bound of a member. It stands before each of them that need one.
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
