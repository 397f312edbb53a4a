-- Checks the token, raises the mark, runs the commands: one step.
--   KEYS  the mark; then the keys of the commands, which a cluster wants to know
--   ARGV  token; who; retention in ms, 0 for ever; then for each command the number of its words, and the words
-- Returns {"done", reply, ...}, {"stale", mark}, {"damaged", mark}, or {"failed", which, error}.
local token, who, retention = ARGV[1], ARGV[2], ARGV[3]
local mark = redis.call('GET', KEYS[1])
local last = mark and string.match(mark, '^(%d+) %d+ .')
if mark and not last then return {'damaged', mark} end
-- As numbers: as text "9" is more than "10". They are below 2^53, so none is rounded.
if last and tonumber(token) < tonumber(last) then return {'stale', mark} end
if not last or tonumber(token) > tonumber(last) then
  local time = redis.call('TIME')
  -- `..` and tostring lose digits above 1e14; %.0f does not. The token is kept as the text that it came as.
  local millis = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
  redis.call('SET', KEYS[1], token .. ' ' .. millis .. ' ' .. who)
end
if retention == '0' then
  redis.call('PERSIST', KEYS[1])
else
  redis.call('PEXPIRE', KEYS[1], retention)
end
local done, which, word = {'done'}, 0, 4
while word <= #ARGV do
  local words = tonumber(ARGV[word])
  local reply = redis.pcall(unpack(ARGV, word + 1, word + words))
  which, word = which + 1, word + words + 1
  if type(reply) == 'table' and reply.err then return {'failed', which, reply.err} end
  done[which + 1] = reply
end
return done
