-- stage_init.lua: creates the record of a namespace.
--
-- KEYS[1]  the record
-- KEYS[2]  the members
-- ARGV[1]  the stage to begin with: 0 legacy, 1 bridge, 2 modern
-- ARGV[2]  the key patterns, a JSON array of strings
-- ARGV[3]  what is known of the old clients, a JSON object: see stage_shared.lua
-- ARGV[4]  the epoch to begin with: larger than any of a namespace of this name that was deleted
-- ARGV[5]  the last moment at which this may act: until then the patterns are reserved
-- ARGV[6]  what the record rests on, for people
-- Reply    {1, epoch, stage} created; {0, epoch, stage} there is one already, nothing changed;
--          {-1, ms, 0} members of a record that was lost may still hold locks for ms;
--          {-2, ms, 0} it came ms too late
--
-- Atomic because two operators may run it at once, and because the record must not come back in
-- another stage beside members of its former life.
if old then return old end
local epoch, stage = unpack(redis.call('HMGET', KEYS[1], 'epoch', 'stage'))
if epoch then return {0, tonumber(epoch), tonumber(stage)} end
if now > tonumber(ARGV[5]) then return {-2, now - tonumber(ARGV[5]), 0} end
local wait = 0
for _, member in ipairs(each_member(KEYS[2])) do
  wait = math.max(wait, gone_at(member) - now + 1)
end
if wait > 0 then return {-1, wait, 0} end
redis.call('HMSET', KEYS[1], 'epoch', ARGV[4], 'stage', ARGV[1], 'since', string.format('%.0f', now),
  'patterns', ARGV[2], 'clients', ARGV[3], 'note', ARGV[6])
return {1, tonumber(ARGV[4]), tonumber(ARGV[1])}
