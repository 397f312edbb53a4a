-- {1, now, state, token, label, since, pttl, result} the record   {0, now} there is none
-- ARGV: "brief" to leave out the result, or nothing
--BOOK--
if not read() then return {0, now} end
return entry(1, ARGV[1])
