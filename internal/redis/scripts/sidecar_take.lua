-- sidecar_take.lua: SETNX, SET NX and GETSET of a service behind a sidecar: takes the lock by a token.
--
-- KEYS key        the lock's key
-- KEYS guard      its guard
-- KEYS record     the record of its sidecars
-- KEYS queue      its queue, or the lock's key when none is kept
-- KEYS yield      the state of the gaps for old clients, or the lock's key when none are left
-- WORD name       of the sidecar
-- WORD shape      of the reply: nx, set; timed: nx, with a TTL that the service itself gives the key; getset: one that wins on nothing;
--             lose: one that does not; wait: the sidecar itself asks, for the next attempt of the service
-- WORD value      the bridge value: far-future to every legacy reader, unguessable
-- WORD ttl        in milliseconds
-- WORD ends       when the client takes its text for expired, in milliseconds of the sidecar's clock; 0: never
-- WORD not_after  the last millisecond of the server's clock at which this command may act, 0 for none
-- WORD grace      in milliseconds; -1 takes no legacy expiry over
-- WORD settle     how long a takeover settles, in milliseconds
-- WORD free       1: a free key settles too, see Dialect.SettlesFree
-- WORD unit       of the namespace's dialect: ms, s, float or ns
-- WORD layout     of it
-- WORD own_unit   of the service's dialect
-- WORD own_layout of it
-- WORD gap       the length of a gap for old clients in milliseconds, 0 for none: see bridge_yield.lua
-- WORD claim      for how long a lock that was handed over, or that settles, is kept for the next attempt, in milliseconds
-- WORD far        the number that stands for any other holder of the lock: live on any clock
-- WORD written    what the client writes: the rest
-- Reply    nx, timed: 1 granted, 0 held. set: OK, nil. getset, lose: nil granted, far: it loses, the service's own text, or a value
--          that is no token and no live time: it is replaced.
--          wait: 1 the next attempt will be granted, 0 it stands in the queue
--
-- Atomic for the reasons of bridge_acquire.lua, and because the record must say what stands on the key.
-- A member whose lease is over gets "held" and no error: old clients throw on errors.
-- A GETSET on the service's own lock is what it is on a bare server: the threads of one service settle it among themselves. On nothing, one
-- that would not win is told far, and plants nothing. There are clients that take nothing for an expiry long past: they would win, while
-- the key is free for everybody else. An expiry of others is taken over by a SETNX, and by no GETSET. Over a time of the service's own
-- dialect that is over a GETSET wins, and gets a token. Over any other value it loses, or nobody here knows: it is what it is on a bare
-- server. A token that nobody believes to hold would outlast the DEL of the one whose value it replaced.
-- A takeover needs two attempts. The first puts a token on key and guard, and is refused; one that comes after the settling is
-- granted if the token still stands there. The same token waits in the queue: a release hands the key to it, and
-- the next attempt finds it there.
-- What a redis-py loser without a lease wrote over our place is taken for nothing, for the reasons of bridge_acquire.lua.
-- The usual case comes first: a key that is free, that nobody waits for and that has no state of gaps.
-- The record is written first, the guard next, the key last: nothing is taken when one of the commands is refused.
-- include effects.lua
-- include clock.lua
-- include sidecar_database.lua
-- include sidecar_shared.lua
if old_server then return old_server end
grace, settle, gap, claim = tonumber(grace), tonumber(settle), tonumber(gap), tonumber(claim)
local swaps = shape == 'getset' or shape == 'lose'

local function refused()
  if shape == 'nx' or shape == 'timed' or shape == 'wait' then return 0 end
  return swaps and far
end
local function granted()
  if shape == 'nx' or shape == 'timed' then return 1 end
  return shape == 'set' and redis.status_reply('OK')
end

look()
if late(not_after) then
  tell(name, 'late')
  return refused()
end
local s = read(name)
if ttl == '0' and not swaps then return refused() end -- its client takes it for over already
local over = ttl == '0'
if over then ttl = 1 end
local keeps = claim + ttl
local careful = free == '1' and settle > 0

-- take(token, reply) writes all that makes the lock ours.
local function take(token, reply)
  local before = redis.call('HGET', record, name)
  s.token, s.ends, s.text, s.since, s.place, s.settle, s.stands, s.timed = token, ends, written, now, '-', 0, 0, shape == 'timed' and '1' or '0'
  write(name, s, keeps)
  local set = redis.pcall('SET', guard, token, 'PX', ttl)
  if not set.err then set = redis.pcall('SET', key, token, 'PX', ttl) end
  if set.err then
    redis.pcall('SET', guard, token, 'PX', 1)
    if before then redis.pcall('HSET', record, name, before) else redis.pcall('HDEL', record, name) end
    return set
  end
  return reply or granted()
end

if s.place == '-' and not careful and shape ~= 'wait' and shape ~= 'lose' and not over and redis.call('EXISTS', key, guard, yield, queue) == 0 then return take(value) end
-- include bridge_shared.lua
if swaps then
  local what, seen, owner = whose(s)
  if what == 'mine' then
    local before = s.text
    s.text, s.ends, s.timed = written, ends, '0'
    write(name, s, keeps)
    redis.call('PEXPIRE', guard, ttl)
    redis.call('PEXPIRE', key, ttl)
    return before
  elseif what == 'raw' then
    if type(seen) == 'table' then return seen end
    if owner and owner ~= s.token and owner ~= 'breath' or redis.call('PTTL', key) < 0 and expiry(seen, unit, layout) then return far end
    local due = expiry(seen, own_unit, own_layout)
    if due and grace >= 0 and now > due + grace then return take(value, seen) end
    return redis.call('GETSET', key, written)
  elseif what == 'theirs' or shape == 'lose' or over then
    return far
  end
end
-- include bridge_yield.lua
-- include fence.lua
-- include queue_grant.lua
local owner, seen, kind = text(guard), text(key)
local place = s.place ~= '-' and s.place
local state = gap > 0 and recall()

local function entry() return string.format('%.0f %.0f 1 lockmigrate:sidecar:%s %s', claim, s.stands, name, place) end

-- waits() refuses the attempt, and takes a place in the queue, or keeps it. A place that is not asked for any more is given up.
local function waits()
  if queue == key or place and s.stands > now + claim then return refused() end
  local stood = place and s.stands > 0 and entry()
  place = place or value
  s.place, s.stands = place, now + 2 * claim
  if not_after ~= '0' then s.stands = math.min(s.stands, tonumber(not_after)) end
  if pcall(write, name, s, keeps) then join(queue, keeps, entry(), stood) end
  return refused()
end

-- withdraw(): another one has come to a key that settles.
local function withdraw()
  if place and owner == place then redis.call('DEL', guard) end
  s.settle = 0
  return waits()
end

if owner and owner ~= place then return waits() end
if owner and (unit == 'float' or own_unit == 'float') and seen == '2147483649.0' and redis.call('PTTL', key) < 0 then seen = nil end
over = false
if seen and seen ~= place then
  if kind ~= 'string' or redis.call('PTTL', key) >= 0 then return withdraw() end
  local due = expiry(seen, unit, layout)
  if due and state then old_turn(state) end
  if not due or grace < 0 or now <= due + grace then return withdraw() end
  over = true
elseif not seen and owner ~= place then
  local waiters = queue ~= key and redis.pcall('ZRANGE', queue, 0, 9) or {}
  if state and keeps_off(state, #waiters) > 0 then return waits() end
  if waiters[1] and not (place and waiters[1] == entry()) then
    redis.call('SET', key, value, 'XX', 'PX', ttl) -- sets nothing: it asks for the right that a grant needs
    if grant(key, queue, guard, key, '0', {own = place or value}) then return waits() end
  end
end
local settles = place and s.settle > 0 and (owner == place or seen == place)
local ready = place and seen == place and (s.settle == 0 and not careful or s.settle > 0 and owner == place and now >= s.settle)
if ready and shape == 'wait' then return 1 end
local slow = over or settles or careful
if not ready and (slow or shape == 'wait') then
  if settles and owner == place and seen == place then return refused() end
  s.place, s.settle = place or value, slow and now + settle or now
  claim = math.max(claim, settle * 2)
  write(name, s, keeps)
  redis.call('SET', guard, s.place, 'PX', claim)
  local set = redis.pcall('SET', key, s.place, 'PX', claim)
  if set.err then redis.call('SET', guard, s.place, 'PX', 1) return set end
  if slow then return refused() end
  return 1
end

if s.stands > 0 and place and queue ~= key then redis.pcall('ZREM', queue, entry()) end
return take(ready and place or value)
