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
