-- Removes the record if it has this token.
-- {1, now} removed   {0, now, there} not; there is 1 if there is a record, of another token
-- ARGV: token
--RECORD--
local state, last = read()
if not state or last ~= tonumber(ARGV[1]) then return {0, now, state and 1 or 0} end
redis.call('DEL', record)
return {1, now}
