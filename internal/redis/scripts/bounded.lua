-- bounded.lua: what a script begins with that acts only within the lease of its member. It stands before each of them. They have
-- not_after: the last millisecond of the server's clock at which the command may act, '0' for none.
-- include effects.lua
-- include clock.lua
local refusal = old_server or late(not_after)
if refusal then return refusal end
