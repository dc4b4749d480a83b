-- effects.lua: the part that scripts share which write after they have read the clock, or asked who listens. It stands before
-- each of them. It has their writes replicated, and not their text.
--
-- Since Redis 5 servers do that by themselves. Redis 3.2 and 4, and 6.2 with lua-replicate-commands no, do it when they are
-- asked. Redis 2.8 and 3.0 cannot do it: there a script may not write after TIME. So they are refused here, before anything
-- is written.
if redis.replicate_commands then
  redis.replicate_commands()
elseif not redis.REDIS_VERSION_NUM then -- servers that no longer need to be asked may drop the function
  return redis.error_reply('OLDSERVER Redis before 3.2 cannot run this script: it may not write after it has read the clock')
end
