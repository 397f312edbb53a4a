-- Finishes the record, if this token may.
-- {1, now} finished, now or before   {0, now, there} not, and nothing was changed; there is 1 if there is a record
-- ARGV: token, label, outcome (done, failed or abandoned), result, retention (ms), precondition (own or older)
--RECORD--
local token, label, outcome, result, retention, precondition = unpack(ARGV)
local state, last = read()
local ours = tonumber(token)
if precondition == 'own' then
  if not state then return {outcome == 'abandoned' and 1 or 0, now, 0} end
  if last ~= ours then return {0, now, 1} end
  -- Finished already, and the reply was lost.
  if state ~= 'running' then return {1, now} end
elseif state and last > ours then
  return {0, now, 1}
end
if outcome == 'abandoned' then redis.call('DEL', record) else write(outcome, token, label, result, retention) end
return {1, now}
