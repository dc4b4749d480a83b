-- fence_raise.lua: makes a key's fencing counter at least as large as a number.
--
-- KEYS fence      the fencing counter
-- ARGV least      the number
-- ARGV fence_ttl  the counter's TTL in milliseconds, 0 when none is kept
-- Reply    the counter: least, or what it was if that is larger
--
-- Atomic because a late one of these must not lower a counter that others have drawn from since. A counter that is no whole number up to
-- 9e15 counts as none, as in fence.lua. MGET is nil for what is no string.
-- include effects.lua
if old_server then return old_server end
local last = tonumber(string.match(redis.call('MGET', fence)[1] or '', '^%d+$') or 0)
if last <= 9e15 and last >= tonumber(least) then return last end
if fence_ttl ~= '0' then redis.call('SET', fence, least, 'PX', fence_ttl) end
return tonumber(least)
