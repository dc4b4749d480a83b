-- stage_join.lua: a member reports, gets a new lease, and is told the stage.
--
-- KEYS record     the record
-- KEYS members    the members
-- ARGV id         the member's id
-- ARGV seq        the number of this report, growing
-- ARGV lease      its lease in milliseconds
-- ARGV epoch      the epoch that it runs, -1 none yet
-- ARGV stage      the stage that it runs, -1 none yet
-- ARGV lowest     the lowest stage of its locks and attempts under way, -1 none
-- ARGV highest    the highest, -1 none
-- ARGV longest    for how long a lock can outlive its last renewal, in milliseconds
-- ARGV skew       how far its clock is ahead of the server's, in milliseconds
-- ARGV info       host, process and version as JSON
-- ARGV not_after  the last moment at which this report counts; 0 asks for the record only, and writes nothing
-- ARGV why        why it cannot run the record; empty when it can
-- Reply     {1, now, ends, epoch, stage, patterns, clients}; {0, now} there is no record;
--           {-1, now} a later report has arrived already, or the member has left; {-2, now} it came too late;
--           {2, now, 0, epoch, ...} the record, to one who only asks;
--           {-3, now, ms, why} no lease, the server has lost changes or may have: restarted for ms at most; ahead, another
--           member is; apart, this one is two stages away from the record
--
-- Atomic because what a member is told must be on record before it can act on it: stage_move.lua counts
-- both what a member ran and what it may have begun to run.
--
-- Whatever the server forgets, stages two apart are not in use together. A member that is two stages away from the record gets no
-- lease until it holds nothing there. One that does not run the record as it stands, as every new one, gets none while another
-- is two stages ahead of it, or while that cannot be known: see doubted().
-- effects.lua: the part that scripts share which write after they have read the clock, or asked who listens. It stands before
-- each of them. It has their writes replicated, and not their text.
--
-- Since Redis 5 servers do that by themselves. Redis 3.2 and 4, and 6.2 with lua-replicate-commands no, do it when they are
-- asked. Redis 2.8 and 3.0 cannot do it: there a script may not write after TIME. On those, old_server is the error with which a
-- script that needs the clock refuses before it writes anything. It tells the server's version, which nobody else on the way of
-- the reply can ask for. A script that gives a lock back is refused nowhere: the DEL that it needs at least works on every server.
local info = ARGV[10]
local old_server
if redis.replicate_commands then
  redis.replicate_commands()
elseif not redis.REDIS_VERSION_NUM then -- a server that need not be asked may drop the function
  local info = redis.pcall('INFO', 'server')
  local version = type(info) == 'string' and info:match('redis_version:(%S+)') or 'before 3.2'
  old_server = {err = 'OLDSERVER Redis ' .. version .. ' cannot run this script: it may not write after it has read the clock; 3.2 and later can'}
end
-- stage_shared.lua: the part that the scripts of a namespace share. It stands before each of them.
--
-- A namespace is two keys in one slot. The record is a hash: epoch, stage (0 legacy, 1 bridge, 2 modern),
-- since, patterns, clients, note, history. Clients is what is known of the old clients, a JSON object that no script reads:
-- dialect, shortest_ms (their shortest lease), lag_ms (how far their clocks are behind), delay_ms (how late
-- their commands come). It also has yield_ms, and longest_ms (their longest silence). protocol is the version of all this, see
-- stage_version.lua. Further fields, of the server:
--   server   the run id of the server process that a member has proved to know the last change
--   doubt    "<run id> <ms>": another process has the record since then, perhaps from a snapshot; nobody has proved it yet
--   ahead    there is a member's entry with ahead, see below
-- The members are a hash from a member's id to a JSON object:
--   seq      the number of its last report; an older one that arrives late changes nothing
--   epoch    what it ran when it reported; -1 before it has run any
--   stage    the same
--   lo, hi   every stage that it may run or hold a lock of: what it ran, what it was told to run, what
--            its locks and its attempts under way are of
--   seen     when it reported
--   ends     the end of its lease: no command of it that takes or renews a lock acts later, because
--            each carries this bound to the script that would act
--   longest  for how long a lock can outlive its last renewal
--   skew     how far its clock is ahead of the server's, in milliseconds
--   info     host, process, version: for people
--   why      why it cannot run the record; empty when it can
--   ahead    1: it runs a later record, or holds its locks, two stages away: the server has lost changes
-- A member is one process: its id is drawn when it starts. A process that follows a crashed one under the
-- same name is another member. The crashed one counts until nothing of it can be held. A member that has
-- said goodbye leaves {seq, left}: until left, the last moment at which a report of it is taken, the entry
-- keeps late reports out. After that the reports are refused by their own bound. All times are in
-- milliseconds of the server's clock.
local record, members, id, seq, epoch, stage, longest, why = KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[4], ARGV[5], ARGV[8], ARGV[12]
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)

-- slack_ms covers the rounding of times. In a cluster it also covers a difference of clocks: the
-- record's node has one, the nodes of the locks have others.
local slack_ms = 1000

-- gone_at(member): from then on nothing of a silent member can be held.
local function gone_at(member)
  return member.ends + member.longest + slack_ms
end

-- member_of(text): an entry; nil where it is none, as when somebody else has written there.
local function member_of(text)
  local ok, member = pcall(cjson.decode, text)
  if not ok or type(member) ~= 'table' then return nil end
  for _, field in ipairs(member.left and {'seq', 'left'} or {'seq', 'epoch', 'stage', 'lo', 'hi', 'ends', 'longest'}) do
    if type(member[field]) ~= 'number' then return nil end
  end
  return member
end

-- each_member(key, forget): the members that still count, and the ids of the entries that cannot be read. With forget the entries that
-- have run out are removed; without, nothing is written.
local function each_member(key, forget)
  local members, broken, flat = {}, {}, redis.call('HGETALL', key)
  for i = 1, #flat, 2 do
    local member = member_of(flat[i + 1])
    if not member then
      broken[#broken + 1] = flat[i]
    elseif member.left or now > gone_at(member) then
      if forget and now > (member.left or 0) then redis.call('HDEL', key, flat[i]) end
    else
      member.id = flat[i]
      members[#members + 1] = member
    end
  end
  table.sort(members, function(a, b) return a.id < b.id end)
  return members, broken
end

-- blocker(list, member, why, stage): adds a member that is in the way, as six elements: id; why; the
-- milliseconds until it has run out, -1 while it lives; stage; the milliseconds that its lease still
-- lasts, negative when it is silent; why it cannot run the record.
local function blocker(list, member, why, stage)
  local wait = now <= member.ends and -1 or gone_at(member) - now + 1
  for _, element in ipairs({member.id, why, wait, stage, member.ends - now, member.why or ''}) do
    list[#list + 1] = element
  end
end

-- unreadable(list, broken, stage): adds the entries that cannot be read: nobody knows what such a member holds.
local function unreadable(list, broken, stage)
  for _, id in ipairs(broken) do
    for _, element in ipairs({id, 'unreadable', -1, stage, 0, ''}) do list[#list + 1] = element end
  end
end

-- only_if_alone(list, key): adds every member that still counts, for changes that no member may see.
local function only_if_alone(list, key)
  local members, broken = each_member(key)
  for _, member in ipairs(members) do
    blocker(list, member, now <= member.ends and 'lives' or 'silent', member.stage)
  end
  unreadable(list, broken, 0)
end

-- doubted(record, server, doubt, proof, execute): for how many more milliseconds the server may have lost a change of the stage
-- without anybody knowing; 0: it has lost none. A process of the server that nobody has proved may have the record from a snapshot, or be
-- a replica that had not heard of the last change. A living member that runs the record as it stands is the proof: while it lives, no
-- change can have led two stages away from it. Without one, the longest lease of a member ends the doubt: each member that lives
-- has reported by then. Server and doubt are the record's fields. Where INFO is refused, nobody can tell.
local longest_lease = 15000
local function process()
  local info = redis.pcall('INFO', 'server')
  return type(info) == 'string' and string.match(info, 'run_id:(%w+)') or ''
end
local function doubted(record, server, doubt, proof, execute)
  local id = process()
  if id == '' or id == server then return 0 end
  local seen, since = string.match(doubt or '', '^(%w+) (%d+)$')
  local left = (seen == id and tonumber(since) or now) + longest_lease - now
  if proof or (server or '') == '' or left <= 0 then
    if execute then redis.call('HSET', record, 'server', id) end
    return 0
  end
  if seen ~= id and execute then redis.call('HSET', record, 'doubt', id .. string.format(' %.0f', now)) end
  return left
end

-- history_with(record, change): the record's history with one line more, "<when> <change>"; the newest 50 are kept.
local function history_with(record, change)
  local lines = {}
  for line in string.gmatch(redis.call('HMGET', record, 'history')[1] or '', '[^\n]+') do lines[#lines + 1] = line end
  lines[#lines + 1] = string.format('%.0f ', now) .. change
  return table.concat(lines, '\n', math.max(1, #lines - 49))
end
if old_server then return old_server end
-- stage_version.lua: the part that all scripts share which read or write the record of a namespace. It stands before each of them.
--
-- The record's field protocol is "<number>", or "<number> <the first build that knows it>"; without the field the number is 1. A script that
-- does not know the number must end here: it cannot know what anything else of the record, or of a member, means. These stay as they are
-- in every later version: the record's name, that it is a hash, and this field.
local protocol, first_build = string.match(redis.call('HMGET', record, 'protocol')[1] or '1', '^(%d+) ?(%C*)$')
if protocol ~= '1' then
  if not first_build or first_build == '' then first_build = 'a later build' end
  return redis.error_reply('PROTOCOL the record is of protocol ' .. (protocol or 'unknown') .. ', and this build knows protocol 1; use ' .. first_build)
end
local lease, lowest, highest, skew, not_after = ARGV[3], ARGV[6], ARGV[7], ARGV[9], ARGV[11]
local order = redis.call('HMGET', record, 'epoch', 'stage', 'patterns', 'clients', 'server', 'doubt', 'ahead')
if not order[1] then return {0, now} end
local told = tonumber(order[2])
not_after = tonumber(not_after)
if not_after == 0 then
  return {2, now, 0, tonumber(order[1]), told, order[3], order[4]}
end
if now > not_after then return {-2, now} end
local ends = now + tonumber(lease)
local before = redis.call('HGET', members, id)
before = before and member_of(before)
if before then
  if before.left or before.seq >= tonumber(seq) then return {-1, now} end
  ends = math.max(ends, before.ends) -- after a step back of the clock, commands may still carry the old end
else
  each_member(members, true) -- forgets those that have run out, so that restarts leave nothing behind
end
epoch, stage = tonumber(epoch), tonumber(stage)
local current = tonumber(order[1])
local lo, hi = 9, -9 -- of what it runs and holds
for _, used in ipairs({stage, tonumber(lowest), tonumber(highest)}) do
  if used >= 0 then lo, hi = math.min(lo, used), math.max(hi, used) end
end
local apart = math.max(hi, told) - math.min(lo, told) > 1
local runs = epoch == current and stage == told
local left = doubted(record, order[5], order[6], runs and not apart, true)
local ahead, refused
if apart then
  refused = 'apart'
  if epoch > current or epoch == current and not runs or before and before.ahead then ahead = 1 end
elseif not runs and left > 0 then
  refused = 'restarted'
elseif not runs and order[7] then
  for _, member in ipairs(each_member(members)) do
    if member.ahead and member.id ~= id then refused = 'ahead' end
  end
end
if not refused or lo > hi then lo, hi = math.min(lo, told), math.max(hi, told) end
if ahead then
  redis.call('HSET', record, 'ahead', 1)
elseif order[7] and not runs and not refused then
  redis.call('HDEL', record, 'ahead')
end
redis.call('HSET', members, id, cjson.encode({
  seq = tonumber(seq), epoch = epoch, stage = stage, lo = lo, hi = hi,
  seen = now, ends = ends, longest = tonumber(longest), skew = tonumber(skew), info = info, why = why, ahead = ahead,
}))
if refused then return {-3, now, left, refused} end
return {1, now, ends, tonumber(order[1]), told, order[3], order[4]}
