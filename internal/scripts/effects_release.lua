-- effects_release.lua: effects.lua for the scripts that give a lock back. It stands before each of them. They are refused
-- nowhere: the DEL that they need at least works on every server.
if redis.replicate_commands then redis.replicate_commands() end
