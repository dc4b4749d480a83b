-- sidecar_database.lua: the database in which the keys are, see sidecar_shared.lua. It stands before each of them.
local _, database = unpack(ARGV)
if database then redis.call('SELECT', database) end
