-- Makes the record running under this token.
-- {1, now} ours   {2, now, state, token, label, since, pttl, result} finished   {3, now} running with a higher token
-- ARGV: token, label, retention (ms)
--RECORD--
local token, label, retention = unpack(ARGV)
local state, last = read()
if state and state ~= 'running' then return info(2) end
if state and last > tonumber(token) then return {3, now} end
write('running', token, label, '', retention)
return {1, now}
