-- bridge_shared.lua: the part that the bridge's scripts share. It stands before each of them.
-- In the middle of one, where it says so: what comes before that is the usual case.

-- expiry(value, unit, layout): the instant in milliseconds that a legacy value stands for, or nil when
-- it is no expiry of this dialect. Only what the dialect's clients really write is read: what a lenient
-- reader would make of a sign, a blank or a prefix is never taken over. A number without a TTL may
-- stand for a time before 2001 or more than a century ahead. Then it is in another unit, a thread id, a
-- flag or a bridge value that lost its TTL: nil.
local function expiry(value, unit, layout)
  local digits = value
  if layout == 'uuid' then
    digits = string.match(value, '^%x+%-%x+%-%x+%-%x+%-%x+:(%d+)$')
  elseif layout == 'dash' then
    digits = string.match(value, '^(%d+)%-[^%-]+%-.+$')
  elseif layout == 'colon' then
    digits = string.match(value, '^(%d+):.+$')
  elseif layout == 'quoted' then
    digits = string.match(value, '^"(%d+)"$') or value
  elseif layout == 'fst' then -- a Java Long: f6 82 and eight bytes, the lowest first
    if #value ~= 10 or string.sub(value, 1, 2) ~= '\246\130' then return nil end
    local n = 0
    for i = 10, 3, -1 do n = n * 256 + string.byte(value, i) end
    digits = string.format('%.0f', n)
  end
  if not digits or #digits > 32 then return nil end
  if not string.match(digits, unit == 'float' and '^%d+%.?%d*$' or '^%d+$') then return nil end
  local ends = tonumber(digits)
  if not ends then return nil end
  if unit == 's' then
    ends = (ends + 1) * 1000 -- a reader calls it over when its own count of seconds has passed it
  elseif unit == 'float' then
    ends = math.ceil(ends * 1000)
  elseif unit == 'ns' then
    ends = math.ceil(ends / 1000000)
  end
  if ends < 1e12 or ends > now + 3.2e12 then return nil end
  return ends
end

-- text(key): what a key holds: its string, or its type's name when it is no string, and nil when it is
-- absent. A value of another type must not raise an error: to us it is a holder that we cannot read.
local function text(key)
  local value = redis.pcall('GET', key)
  if not value then return nil, 'none' end
  if type(value) == 'string' then return value, 'string' end
  if not string.find(value.err, 'WRONGTYPE', 1, true) then return redis.call('GET', key) end -- refused: the script is over
  local kind = redis.pcall('TYPE', key).ok or 'no string'
  return kind, kind
end
