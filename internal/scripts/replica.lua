-- replica.lua: whether this server has become a replica. It stands before each of them that answer, without a write, that a lock is
-- not ours. A replica may be behind its master, and a connection may outlive the change. Only a master's no counts.
--
-- replica(key, found) returns the refusal of a replica, nil at a master. found is what the key holds, nil or false where it is absent.
-- The SET sets nothing: NX where there is a key, XX where there is none. A user without the right to SET is not told.
local function replica(key, found)
  local tried = redis.pcall('SET', key, '', 'PX', 1, found and 'NX' or 'XX')
  return tried and tried.err and string.find(tried.err, 'READONLY', 1, true) and tried or nil
end
