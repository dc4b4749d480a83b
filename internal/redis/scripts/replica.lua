-- replica.lua: whether this server takes no writes: a replica, a master with too few replicas, or one that cannot save. It stands before
-- each of them that answer, without a write, that a lock is not ours. A replica may be behind its master, and a connection may outlive
-- the change. A master without replicas may have been replaced. Where a write was refused before, the answer would hide it.
--
-- replica(key, found) returns the refusal, nil where the server takes writes. found is what the key holds, nil or false where it is
-- absent. The SET sets nothing: NX where there is a key, XX where there is none. A user without the right to SET is not told.
local function replica(key, found)
  local tried = redis.pcall('SET', key, '', 'PX', 1, found and 'NX' or 'XX')
  local why = tried and tried.err or ''
  for _, word in ipairs({'READONLY ', 'NOREPLICAS ', 'MISCONF '}) do
    if string.find(why, word, 1, true) then return tried end
  end
end
