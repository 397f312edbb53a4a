-- Makes the record running under this token.
-- {1, now} ours   {2, now, state, token, label, since, pttl, result} settled   {3, now} one with a higher token runs
-- ARGV: token, label, keep (ms)
--BOOK--
local token, label, keep = unpack(ARGV)
local state, last = read()
if state and state ~= 'running' then return entry(2) end
if state and last > tonumber(token) then return {3, now} end
write('running', token, label, '', keep)
return {1, now}
