-- Settles the record, if this token may.
-- {1, now} settled, now or before   {0, now, there} not, and nothing was changed; there is 1 if there is a record
-- ARGV: token, label, outcome (done, failed or abandoned), result, keep (ms), over (own or older)
--BOOK--
local token, label, outcome, result, keep, over = unpack(ARGV)
local state, last = read()
local ours = tonumber(token)
if over == 'own' then
  if not state then return {outcome == 'abandoned' and 1 or 0, now, 0} end
  if last ~= ours then return {0, now, 1} end
  -- We did already, and the answer got lost.
  if state ~= 'running' then return {1, now} end
elseif state and last > ours then
  return {0, now, 1}
end
if outcome == 'abandoned' then redis.call('DEL', book) else write(outcome, token, label, result, keep) end
return {1, now}
