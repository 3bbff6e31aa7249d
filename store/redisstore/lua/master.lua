-- Begins every script. A replica may let itself be read and even written. An account that may not
-- ask for the role is not protected from replicas.
local replication = redis.pcall('INFO', 'replication')
if type(replication) ~= 'string' then replication = 'role:master' end
if not string.find(replication, 'role:master', 1, true) then return {'replica'} end
