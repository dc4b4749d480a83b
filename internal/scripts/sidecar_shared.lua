-- sidecar_shared.lua: the part that the sidecar's scripts share. It stands before each of them.
--
-- A sidecar locks for one service whose code nobody changes. That service's own connection runs these scripts, in the place of
-- its commands, and gets the replies that it expects. All that is not a key is packed into one argument:
-- before AUTH a server refuses a command of more than ten words. A second argument is the database in which the keys are. It is given where
-- only replies tell in which one the client's connection is. A SELECT in a script lasts for the script.
--
-- The record is a hash with a field for each sidecar: "<token> <until> <since> <place> <settle> <stands> <owed> <text>".
--   token   what stands on the key and its guard, '-' for nothing, '=' for the text itself (a legacy expiry, or a client's own token)
--   until   when the client takes text for expired, in milliseconds of the sidecar's clock; 0: never
--   since   the server's time in milliseconds at which it was granted
--   place   the token that stands in the queue, or settles; '-' for none
--   settle  0, or the server's time in milliseconds from which place may be confirmed after a takeover
--   stands  until when, on the server's clock, place may be handed the lock; 0: it does not stand in the queue
--   owed    for each grant whose DEL has not come yet the server's time in milliseconds at which it is given up, the oldest
--           first, a comma after each; '-' for none
--   text    what the client wrote
-- It has a TTL. It has all that a sidecar knows: one that is started again goes on where it was.
local _, database = unpack(ARGV)
if database then redis.call('SELECT', database) end

local function read(name)
  local field = redis.call('HGET', record, name)
  local s = {token = '-', ends = '0', since = 0, place = '-', settle = 0, stands = 0, owed = {}, text = ''}
  local token, ends, since, place, settle, stands, owed, text = string.match(field or '', '^(%S+) (%d+) (%d+) (%S+) (%d+) (%d+) (%S+) (.*)$')
  if not token then return s end
  s.token, s.ends, s.since, s.place, s.settle, s.stands, s.text = token, ends, tonumber(since), place, tonumber(settle), tonumber(stands), text
  for at in string.gmatch(owed, '%d+') do s.owed[#s.owed + 1] = tonumber(at) end
  return s
end

-- held(s): the value by which s holds the key, if it holds it.
local function held(s)
  if s.token == '=' then return s.text end
  return s.token ~= '-' and s.token
end

-- past(s, host): s is a text with a TTL, which is over. What stands on the key is another's, who may have written the same text.
local function past(s, host)
  return s.token == '=' and s.ends ~= '0' and tonumber(s.ends) < tonumber(host) and (tonumber(redis.pcall('PTTL', key)) or -1) >= 0
end

-- write(name, s, ms): keeps s for at least ms. PEXPIRE comes first: where it is refused, no record without a TTL is made.
local function write(name, s, ms)
  local lives = redis.call('PEXPIRE', record, string.format('%.0f', math.max(redis.call('PTTL', record), ms)))
  local owed = #s.owed > 0 and table.concat(s.owed, ',') .. ',' or '-'
  redis.call('HSET', record, name, string.format('%s %s %.0f %s %.0f %.0f %s ', s.token, s.ends, s.since, s.place, s.settle, s.stands, owed) .. s.text)
  if lives == 0 then redis.call('PEXPIRE', record, ms) end
end

-- prolong(s, ttl): the newest grant lasts for ttl from now, and the record for longer.
local function prolong(s, ttl)
  look()
  local last = #s.owed
  if last > 0 then s.owed[last] = math.max(s.owed[last], now + ttl * 2) end
  write(name, s, ttl * 3)
end

-- give_up(s): drops the grants whose DEL will not come any more.
local function give_up(s)
  while s.owed[1] and s.owed[1] < now do table.remove(s.owed, 1) end
end

-- tell(name, what): tells the sidecar itself. Nothing depends on it.
local function tell(name, what) redis.pcall('PUBLISH', 'lockmigrate:sidecar:' .. name, what .. ' ' .. key) end
