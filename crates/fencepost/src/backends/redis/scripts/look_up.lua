-- {1, now, state, token, label, since, pttl, result} the record   {0, now} there is none   {2, now} it cannot be read
-- ARGV: "brief" to leave out the result, or nothing
--RECORD--
local kind = redis.call('TYPE', record).ok
if kind == 'none' then
  -- Refuses one of layout 1.
  read()
  return {0, now}
end
if kind ~= 'hash' then return {2, now} end
local layout, token = unpack(redis.call('HMGET', record, 'layout', 'token'))
if not layout or layout == '2' and not tonumber(token or '') then return {2, now} end
read()
return info(1, ARGV[1])
