-- stage_init.lua: creates the record of a namespace.
--
-- KEYS record     the record
-- KEYS members    the members
-- ARGV stage      the stage to begin with: 0 legacy, 1 bridge, 2 modern
-- ARGV patterns   the key patterns, a JSON array of strings
-- ARGV clients    what is known of the old clients, a JSON object: see stage_shared.lua
-- ARGV epoch      the epoch to begin with: larger than any of a namespace of this name that was deleted
-- ARGV not_after  the last moment at which this may act: until then the patterns are reserved
-- ARGV note       what the record rests on, for people
-- ARGV change     who changes what, from where and why: a JSON object in one line, for people
-- Reply    {1, epoch, stage} created; {0, epoch, stage} there is one already, nothing changed;
--          {-1, ms, 0} members of a record that was lost may still hold locks for ms;
--          {-2, ms, 0} it came ms too late; {-3, 0, 0} a member's entry cannot be read
--
-- Atomic because two operators may run it at once. And the record must not come back in another
-- stage beside members of its former life.
-- include effects.lua
-- include stage_shared.lua
if old_server then return old_server end
-- include stage_version.lua
local there = redis.call('HMGET', record, 'epoch', 'stage')
if there[1] then return {0, tonumber(there[1]), tonumber(there[2])} end
if now > tonumber(not_after) then return {-2, now - tonumber(not_after), 0} end
local wait = 0
local counted, broken = each_member(members)
if #broken > 0 then return {-3, 0, 0} end
for _, member in ipairs(counted) do
  wait = math.max(wait, gone_at(member) - now + 1)
end
if wait > 0 then return {-1, wait, 0} end
redis.call('HMSET', record, 'epoch', epoch, 'stage', stage, 'since', string.format('%.0f', now),
  'patterns', patterns, 'clients', clients, 'note', note, 'history', history_with(record, change), 'server', process(),
  'protocol', 1)
return {1, tonumber(epoch), tonumber(stage)}
