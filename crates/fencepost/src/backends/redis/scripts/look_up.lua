-- {1, now, state, token, label, since, pttl, result} the record   {0, now} there is none   {2, now} it can not be read
-- ARGV: "brief" to leave out the result, or nothing
--BOOK--
local kind = redis.call('TYPE', book).ok
if kind == 'none' then return {0, now} end
if kind ~= 'hash' or not tonumber(redis.call('HGET', book, 'token') or '') then return {2, now} end
return entry(1, ARGV[1])
