-- stage_epoch.lua: the part that the scripts share which change a record. It stands before each of them.
--
-- It reads epoch and stage. Without a record, or where the epoch is not the one that the caller has seen, the script ends.
local epoch, stage, server, doubt = unpack(redis.call('HMGET', record, 'epoch', 'stage', 'server', 'doubt'))
if not epoch then return {-2, 0, 0} end
epoch, stage = tonumber(epoch), tonumber(stage)
if epoch ~= tonumber(seen) then return {-1, epoch, stage} end
local blocked = {0, epoch, stage}
local left = doubted(record, server, doubt, false, execute == '1')
if left > 0 then return {0, epoch, stage, 'the server', 'restarted', left, stage, left, ''} end
