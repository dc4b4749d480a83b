-- bridge_yield.lua: when a key is left free for old clients. bridge_acquire.lua and bridge_release.lua include it. It stands before each of them.
-- They have `now`, and `gap` as a number.
--
-- Old clients look now and then. Waiting bridge clients hand the key on within a millisecond, so old clients would
-- hardly find it free. So bridge holders leave gaps: the key is free for one gap, and bridge clients keep off. A gap
-- ends when an old client takes the key. It must be longer than the pause between two looks of an old client.
--
-- Is anybody there? Each look of an old client is a SETNX. A release compares the server's count of SETNX with the
-- count at the last look. It looks at most once in 3/4 of a gap. If the count stands still, no old client waits, and
-- there is no gap. The growth tells how many wait; SETNX on other keys count too. A gap that nobody used doubles the
-- time to the next one, up to 16 gaps.
-- Some clients wait without SETNX. There is one gap in 30 s whatever the count says. The count says nothing if INFO
-- is refused, or if an old client takes the key while it stood still. Then gaps come without it.
--
-- How much? Clients that only poll would leave the key free for poll/(waiting + 1) after each turn. Bridge clients
-- save that time, and give it to the old ones: each turn adds it to the credit, but never more than the turn lasted.
-- A gap begins with a credit of half a gap, and uses up the credit while the key is free. Beside that, turns are
-- counted: no gap while old clients are ahead. One more comes at once when they are a turn behind. But SETNX must have
-- been sent while the last of them had the key.
-- An old client that gives the key back may take it again at once, and again: bridge clients hear of it too late. All turns of such
-- a spell count. There are as many as SETNX was sent, less what the waiting old clients send, and no more than turns of the
-- next bridge client fit into it. Where the count says nothing these alone tell. A spell counts for 8 gaps or a second at most.
--
-- The state is a string of numbers:
--   <mode> <at> <credit> <owed> <waiting> <count> <noted> <due> <step> <seen> <ends>
-- Mode 1 is a gap, and ends is its end: modern_share.lua reads these two, so that clients of package modern keep off too.
--   mode     0 bridge clients follow one another, 1 a gap, 2 an old client has, or had, the key
--   at       when the last gap began, or the old client was seen
--   credit   milliseconds that the key may be left free
--   owed     turns that bridge clients are ahead, in hundredths
--   waiting  old clients that wait, in hundredths, 400 at most
--   count    SETNX at the last look; -1: not counted yet, -2: the count says nothing
--   noted    when that was
--   due      no gap and no look before
--   step     the time to the next look or gap where there was no use for one
--   seen     SETNX when the gap began or the old client was seen; -1: not known; mode 0: how long a spell was in milliseconds, until
--            the next release
-- All times are in milliseconds of the server's clock. A state of the future is not believed. The state may be lost
-- or wrong, and the lock must not suffer: each command here may be refused.
local form = '^(%d) (%d+) (%-?%d+) (%-?%d+) (%d+) (%-?%d+) (%d+) (%d+) (%d+) (%-?%d+) %d+$'
local keep = 45000 -- for how long the state is remembered: less than a minute

local function recall()
  local text = redis.pcall('GET', yield)
  if type(text) ~= 'string' or #text > 140 then return nil end
  local mode, at, credit, owed, waiting, count, noted, due, step, seen = string.match(text, form)
  if not mode then return nil end
  local s = {mode = mode, at = tonumber(at), credit = tonumber(credit), owed = tonumber(owed), waiting = tonumber(waiting),
    count = tonumber(count), noted = tonumber(noted), due = tonumber(due), step = tonumber(step), seen = tonumber(seen)}
  if s.at > now or s.noted > now then return nil end
  return s
end

local function remember(s, ms)
  redis.pcall('SET', yield, string.format('%s %.0f %.0f %.0f %.0f %.0f %.0f %.0f %.0f %.0f %.0f', s.mode, s.at, s.credit, s.owed,
    s.waiting, s.count, s.noted, s.due, s.step, s.seen, (s.mode == 1 or s.mode == '1') and s.at + gap or 0), 'PX', ms)
end

-- setnx() is how often the server has run SETNX, nil where it does not say.
local function setnx()
  local stats = redis.pcall('INFO', 'commandstats')
  if type(stats) ~= 'string' or not string.find(stats, 'cmdstat_', 1, true) then return nil end
  return tonumber(string.match(stats, 'cmdstat_setnx:calls=(%d+)') or 0)
end

-- earn(s, held, queued) adds what a turn has earned.
local function earn(s, held, queued)
  s.credit = math.min(s.credit + math.min(held, math.floor(500 * gap / (6 * (100 * queued + 100 + s.waiting)))), 2 * gap)
end

-- needed(s) tells whether old clients are likely to wait.
local function needed(s)
  local since = now - s.noted
  if s.count ~= -1 and 4 * since < 3 * gap then return s.waiting > 0 end
  local n = s.count ~= -2 and setnx()
  if n and (s.count == -1 or since > 25 * gap) then
    s.count, s.noted, s.waiting = n, now, 0
    return false
  end
  s.noted = now
  if not n then
    s.count, s.waiting = -2, 100
    return true
  end
  local more = n < s.count and 1 or n - s.count -- less: somebody has reset the counts
  s.count = n
  if more > 0 then
    s.waiting = math.max(1, math.min(400, math.floor((s.waiting + math.floor(500 * gap * more / (6 * since))) / 2)))
    return true
  end
  s.waiting, s.step = 0, math.min(2 * s.step, 2 * gap)
  s.due = now + s.step
  if now - s.at < 30000 then return false end
  s.waiting = 100
  return true
end

-- yields(held, queued) is for a release: whether a gap begins now. Held says for how long the lock was held, queued
-- how many wait for it.
local function yields(held, queued)
  local s = recall()
  if not s and 32 * held < gap and queued == 0 then return false end
  local lasts = (s or queued > 0) and keep or gap
  if not s then
    s = {at = now, credit = 0, owed = 0, waiting = 0, count = -1, noted = now, due = now, step = gap, seen = 0}
    if held >= keep then s.credit, s.waiting, s.count = gap, 100, -2 end -- nothing is remembered for that long
  end
  earn(s, math.max(held, 1), queued)
  if s.mode == '0' and s.seen > 0 then s.owed = math.max(s.owed, -100 * math.max(1, math.floor(s.seen / math.max(held, 1)))) end
  s.seen = 0
  s.owed = math.min(s.owed + math.floor(s.waiting / (queued + 1)), 300)
  s.mode = 0
  if now >= s.due and needed(s) and 2 * s.credit >= gap and s.owed >= 0 then
    s.mode, s.at, s.seen = 1, now, s.count ~= -2 and setnx() or -1
  end
  remember(s, lasts)
  return s.mode == 1
end

-- spell(s, sent) counts turns of old clients since s.at, when sent SETNX have come since: of 8 gaps or a second at most. It returns how long that was.
local function spell(s, sent)
  local lasted = math.min(now - s.at, math.max(8 * gap, 1000))
  local more = math.max(0, math.min(lasted, sent - math.floor(6 * s.waiting * (now - s.at) / (500 * gap))))
  s.owed = s.owed - 100 * more
  if s.count >= 0 then s.count = s.count + more end -- who takes the key does not wait for it
  return lasted
end

-- old_turn(s) notes that an old client has the key.
local function old_turn(s)
  if s.mode == '2' then return end
  local n = setnx() or -1
  if s.count >= 0 and n == s.count then s.count, s.waiting = -2, 100 end
  if s.mode == '1' then
    s.credit = math.max(s.credit - (now - s.at), -2 * gap)
    if s.seen >= 0 and n > s.seen then spell(s, n - s.seen - 1) end
  end
  s.mode, s.at, s.owed, s.due, s.step, s.seen = '2', now, s.owed - 100, 0, gap, n
  remember(s, keep)
end

-- keeps_off(s, queued) is for one who finds the key free: for how long it has to leave the key to old clients.
local function keeps_off(s, queued)
  local left = s.mode == '1' and s.at + gap - now or 0
  if left > 0 then return left end
  if s.mode == '1' then -- nobody has used it
    if s.count == -2 and s.step >= 16 * gap then s.count = -1 end
    s.credit, s.owed, s.step, s.seen = 0, 0, math.min(2 * s.step, 16 * gap), 0
    s.due = now + s.step
  elseif s.mode == '2' then
    local n = s.seen >= 0 and setnx() or -1
    earn(s, now - s.at, queued)
    local lasted = n >= 0 and spell(s, n - s.seen)
    if s.owed >= 100 and s.credit > 0 and (s.count == -2 or n < 0 or n > s.seen) then
      s.mode, s.at, s.seen = 1, now, n
      remember(s, keep)
      return gap
    end
    s.seen = lasted or spell(s, keep)
  end
  s.mode = 0
  remember(s, keep)
  return 0
end

