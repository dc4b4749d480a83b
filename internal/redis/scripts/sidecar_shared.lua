-- sidecar_shared.lua: the part that the sidecar's scripts share. It stands before each of them.
--
-- A sidecar locks for one service whose code nobody changes. That service's own connection runs these scripts, in the place of
-- its commands, and gets the replies that it expects. All that is not a key is packed into one argument:
-- before AUTH a server refuses a command of more than ten words. A second argument is the database in which the keys are. It is given where
-- only replies tell in which one the client's connection is. A SELECT in a script lasts for the script.
--
-- The record is a hash with a field for each sidecar: "<token> <until> <since> <place> <settle> <stands> <timed> <text>". It has a fixed size.
--   token   what stands on the key and its guard, '-' for nothing
--   until   when the client takes text for expired, in milliseconds of the sidecar's clock; 0: never
--   since   the server's time in milliseconds at which it was granted
--   place   the token that stands in the queue, or settles; '-' for none
--   settle  0, or the server's time in milliseconds from which place may be confirmed after a takeover
--   stands  until when, on the server's clock, place may be handed the lock; 0: it does not stand in the queue
--   timed   1: the service itself gave the key a TTL (EXPIRE); else the TTL is the lease of text
--   text    what the service has on the key: what a bare server would have there
-- It has a TTL. It has all that a sidecar knows: one that is started again goes on where it was.
local function read(name)
  local field = redis.call('HGET', record, name)
  local s = {token = '-', ends = '0', since = 0, place = '-', settle = 0, stands = 0, timed = '0', text = ''}
  local token, ends, since, place, settle, stands, timed, text = string.match(field or '', '^(%S+) (%d+) (%d+) (%S+) (%d+) (%d+) ([01]) (.*)$')
  if not token then return s end
  s.token, s.ends, s.since, s.place, s.settle, s.stands, s.timed, s.text = token, ends, tonumber(since), place, tonumber(settle), tonumber(stands), timed, text
  return s
end

-- write(name, s, ms): keeps s for at least ms. PEXPIRE comes first: where it is refused, no record without a TTL is made.
local function write(name, s, ms)
  local lives = redis.call('PEXPIRE', record, string.format('%.0f', math.max(redis.call('PTTL', record), ms)))
  redis.call('HSET', record, name, string.format('%s %s %.0f %s %.0f %.0f %s ', s.token, s.ends, s.since, s.place, s.settle, s.stands, s.timed) .. s.text)
  if lives == 0 then redis.call('PEXPIRE', record, ms) end
end

-- drop(name, s): this sidecar holds nothing any more.
local function drop(name, s)
  s.token, s.text = '-', ''
  if s.place == '-' then redis.pcall('HDEL', record, name) else pcall(write, name, s, 1) end
end

-- whose(s): what stands on the key. 'none'; 'raw': what a bare server could have there, also of another type; 'mine': the token of this
-- service; 'kept': the token that is kept for its next attempt; 'theirs': another's token. And the value, and what the guard holds. A
-- token is known by its guard, or as a number of ours with a TTL. A value that the service wrote itself is none, see sidecar_run.lua.
local function whose(s)
  local seen, owner = redis.pcall('GET', key), redis.pcall('GET', guard)
  if type(seen) == 'table' then
    if not string.find(seen.err, 'WRONGTYPE', 1, true) then return redis.call('GET', key) end -- refused: the script is over
    return 'raw', seen, owner
  end
  if not seen then return 'none', nil, owner end
  if seen == s.token then return 'mine', seen, owner end
  if seen == s.place then return 'kept', seen, owner end
  local number = string.find(seen, '^\246\130......[\069-\127].$')
  for n in string.gmatch(seen, '%d+') do number = number or #n == 19 and n > '5' and n < '92' end
  if seen == owner or number and redis.call('PTTL', key) >= 0 then return 'theirs', seen, owner end
  return 'raw', seen, owner
end

-- tell(name, what): tells the sidecar itself. Nothing depends on it.
local function tell(name, what) redis.pcall('PUBLISH', 'lockmigrate:sidecar:' .. name, what .. ' ' .. key) end
