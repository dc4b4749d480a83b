-- bridge_settle.lua: after a takeover and a moment of waiting, asks whether the key is still ours.
--
-- KEYS key        the lock's key
-- KEYS guard      its guard
-- ARGV value      the bridge value
-- ARGV ttl        the TTL in milliseconds
-- ARGV rules      "<grace> <unit> <layout> <gap>", as in bridge_acquire.lua; the gap does not matter here
-- ARGV not_after  the last millisecond of the server's clock at which this command may act, 0 for none
-- Reply    {1, 0, 0, ''}        confirmed: both keys are ours, with a full TTL
--          {2, 0, 0, value}     repaired: the key was absent or expired again; ours now, settle again
--          {-1, 0, ms, value}   withdrawn: that value stands, nothing is ours; look again after ms, -1 unknown
--          {0, 0, 0, ''}        the guard is not ours: nothing is
--          error STAGE          the command came after its bound; nothing was done
--
-- Atomic because the answer must be true of key and guard at one moment. And a value may be set
-- again only over the one that was looked at.
-- The guard is extended first: a server that is out of memory allows the SET after that.
-- include bounded.lua
-- include bridge_shared.lua
-- include replica.lua
local grace, unit, layout = string.match(rules, '^(%S+) (%S+) (%S+) ')
local owner = text(guard)
if owner ~= value then return replica(guard, owner) or {0, 0, 0, ''} end
look()

local seen, kind = text(key)
local code = 2
if seen == value then
  code = 1
elseif seen then
  local left, ends = redis.call('PTTL', key), nil
  if kind == 'string' and left < 0 then ends = expiry(seen, unit, layout) end
  local due = ends and ends + tonumber(grace)
  if not due or now <= due then
    redis.call('DEL', guard)
    return {-1, 0, due and due - now + 1 or left, seen}
  end
end
redis.call('PEXPIRE', guard, ttl)
if code == 1 then redis.call('PEXPIRE', key, ttl) else redis.call('SET', key, value, 'PX', ttl) end
return {code, 0, 0, code == 1 and '' or seen or ''}
