-- sidecar_run.lua: any other command of a service behind a sidecar, and its scripts: they act as on a bare server.
--
-- KEYS keys...     the keys of the command; then, for each lock, its guard, its record and its queue
-- ARGV contents... the command, or a script's arguments; then, in one, "<name> <host> <lease> <mode> <at> [database]"
--
--   name      of the sidecar
--   host      the sidecar's clock in milliseconds
--   lease     the TTL of a lock without an end, in milliseconds
--   mode      where another's token stands on a lock's key: "run" runs the command, for it takes nothing away; "spare" leaves the key out;
--             "refuse" refuses it
--   at        which of the keys are locks: their numbers, with a point between two
--   database  in which the keys are; see sidecar_shared.lua
--
-- Reply    what a bare server answers; with spare, 0 for a key that is left out
--          error ERR  the command would damage another's token
--
-- The sidecar puts a script of the service in the place of the line "local function body".
-- Atomic because the text of the service stands on the key while the command runs, and the token at all other times.
-- What the command leaves decides. The text: the token is put back, and has the TTL that the service gave it. Nothing: the lock is free.
-- Another value: it stands there as on a bare server. A value that looks like a token counts as one of this service, so that its
-- DEL frees it. A token whose key a stale DEL removed is put back first: no command takes the key for free.
local locks, words = {}, table.remove(ARGV)
local name, host, lease, mode, at, database = string.match(words, '^(%S+) (%d+) (%d+) (%S+) (%S+) ?(%d*)$')
if database ~= '' then redis.call('SELECT', database) end
local key, guard, record
-- include effects.lua
-- include sidecar_shared.lua
local function body() return redis.pcall(unpack(ARGV)) end
for n in string.gmatch(at, '%d+') do locks[#locks + 1] = {at = tonumber(n)} end
for i = #locks, 1, -1 do
  locks[i].queue, locks[i].record, locks[i].guard = table.remove(KEYS), table.remove(KEYS), table.remove(KEYS)
end
local spared = 0
for _, l in ipairs(locks) do
  l.key = KEYS[l.at]
  key, guard, record = l.key, l.guard, l.record
  l.s = read(name)
  local what, seen, owner = whose(l.s)
  if what == 'none' and type(owner) == 'string' and owner ~= 'breath' and owner ~= l.s.place then
    redis.call('SET', key, owner, 'PX', math.max(redis.call('PTTL', guard), 1))
    what, seen = whose(l.s)
  end
  if what == 'theirs' and mode == 'refuse' then
    return redis.error_reply('ERR lockmigrate sidecar: ' .. ARGV[1] .. ' would damage a lock that another holds; take it with SETNX or SET NX, free it with DEL')
  end
  if what == 'theirs' and mode == 'spare' then
    spared = spared + 1
    for i = #ARGV, 2, -1 do
      if ARGV[i] == key then table.remove(ARGV, i) end
    end
  end
  l.what, l.seen, l.owner = what, seen, owner
end
if spared > 0 and spared == #locks and #KEYS == spared then return 0 end
for _, l in ipairs(locks) do
  if l.what == 'mine' or l.what == 'kept' then
    l.left = math.max(redis.call('PTTL', l.key), 1)
    redis.call('PEXPIRE', l.key, l.left) -- these two change nothing: they ask for the rights. The first is allowed when memory is full
    redis.call('SET', l.key, l.seen, 'PX', l.left)
    if l.what == 'kept' then redis.call('DEL', l.key) else redis.call('SET', l.key, l.s.text) end
    if l.what == 'mine' and l.s.timed == '1' then redis.call('PEXPIRE', l.key, l.left) end
  end
end
local fine, reply = pcall(body)
for _, l in ipairs(locks) do
  key, guard, record = l.key, l.guard, l.record
  local s, now = l.s, redis.pcall('GET', key)
  local lasts = type(now) == 'string' and redis.call('PTTL', key) or -1
  if l.what == 'mine' and now == s.text then
    local left = l.left
    if lasts >= 0 then
      left, s.timed = math.max(lasts, 1), '1'
    elseif s.timed == '1' then
      left, s.timed = s.ends == '0' and tonumber(lease) or math.max(s.ends - host, 1), '0'
    end
    left = string.format('%.0f', left)
    redis.call('SET', key, s.token, 'PX', left)
    if l.owner == s.token then redis.call('PEXPIRE', guard, left) end
    write(name, s, left)
  elseif l.what == 'mine' or l.what == 'raw' and l.owner == s.token and not now then
    if l.owner == s.token then redis.call('DEL', guard) end
    drop(name, s)
  elseif l.what == 'raw' and l.owner == s.token and lasts >= 0 then -- a value over our token
    redis.call('PEXPIRE', guard, lasts)
  elseif l.what == 'kept' and not now then
    redis.call('SET', key, s.place, 'PX', l.left)
  elseif l.what == 'kept' then
    if l.owner == s.place then redis.call('DEL', guard) end
    s.place, s.settle, s.stands = '-', 0, 0
    drop(name, s)
  end
  if not now and l.what == 'mine' then
    for _, entry in ipairs(redis.pcall('ZRANGE', l.queue, 0, 9)) do
      local channel, token = string.match(entry, '^%d+ %d+ [01] (%S+) (.+)$')
      local heard = token and channel ~= '-' and redis.pcall('PUBLISH', channel, 'head ' .. token)
      if type(heard) == 'number' and heard > 0 then break end
    end
  elseif type(now) == 'string' and l.what ~= 'theirs' and whose(s) == 'theirs' then
    if l.owner == s.token then redis.call('DEL', guard) end
    s.token, s.text, s.ends, s.timed = now, now, '0', '1'
    write(name, s, lasts)
  end
end
if fine then return reply end
local why = type(reply) == 'table' and reply.err or reply
return redis.error_reply(string.find(why, '^%u+ ') and why or 'ERR ' .. why)
