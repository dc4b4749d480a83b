-- modern_fence.lua: the part about fencing tokens that scripts share. It stands before each of them.
--
-- after(last) is a number above the last one, and never less than the server's clock in microseconds.
--
-- next_fence(counter, ttl) draws the next fencing token, 0 when the TTL is '0': then no counter is
-- wanted and the key stands in its place, since every key of a script must be in one slot. A counter that this
-- user may not read raises an error: a token without it could be lower than the last one.
--
local function after(last)
  local now = redis.call('TIME')
  return math.max(last + 1, tonumber(now[1]) * 1000000 + tonumber(now[2]))
end

local function next_fence(fence, ttl)
  if ttl == '0' then return 0 end
  local last = redis.pcall('GET', fence)
  if type(last) == 'table' and not string.find(last.err, 'WRONGTYPE', 1, true) then redis.call('GET', fence) end
  last = type(last) == 'string' and tonumber(string.match(last, '^%d+$')) or 0
  if last > 9e15 then last = 0 end -- no counter of ours: it counts as none, like what is no whole number
  local n = after(last)
  redis.call('SET', fence, string.format('%.0f', n), 'PX', ttl)
  return n
end

