-- effects.lua: the part that scripts share which write after they have read the clock, or asked who listens. It stands before
-- each of them. It has their writes replicated, and not their text.
--
-- Since Redis 5 servers do that by themselves. Redis 3.2 and 4, and 6.2 with lua-replicate-commands no, do it when they are
-- asked. Redis 2.8 and 3.0 cannot do it: there a script may not write after TIME. On those, old_server is the error with which a
-- script that needs the clock refuses before it writes anything. It tells the server's version, which nobody else on the way of
-- the reply can ask for. A script that gives a lock back is refused nowhere: the DEL that it needs at least works on every server.
local old_server
if redis.replicate_commands then
  redis.replicate_commands()
elseif not redis.REDIS_VERSION_NUM then -- a server that need not be asked may drop the function
  local info = redis.pcall('INFO', 'server')
  local version = type(info) == 'string' and info:match('redis_version:(%S+)') or 'before 3.2'
  old_server = {err = 'OLDSERVER Redis ' .. version .. ' cannot run this script: it may not write after it has read the clock; 3.2 and later can'}
end
