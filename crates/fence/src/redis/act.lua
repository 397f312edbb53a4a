-- Checks the token, raises the mark, runs the commands: one step.
--   KEYS  the mark; then the keys of the commands, for a cluster
--   ARGV  token, 1 to 2^53 - 1 in decimal digits; who, 1 to 256 bytes without control characters; retention in ms, 0 for
--         ever, else one second to ten years; then for each command the number of its words, at most 7000, and the words
-- Returns {"done", reply, ...}, {"stale", mark}, {"damaged", mark}, or {"failed", which, error}; the number after that of
-- the last command is the expiry of the mark. Anything else is an error, and nothing was done.
local token, who, retention = ARGV[1] or '', ARGV[2] or '', ARGV[3] or ''
local function whole(text, least, most)
  -- tonumber alone accepts " 35", 0x30, 1e3 and NaN, and no token is below NaN. Too large a number rounds to more than
  -- `most`.
  local number = string.match(text, '^[1-9]%d*$') and tonumber(text)
  return number and number >= least and number <= most
end
local function refused(what) return redis.error_reply('ERR fencepost: ' .. what .. '; nothing was done') end
if not whole(token, 1, 9007199254740991) then
  return refused('the token is invalid: give 1 to 9007199254740991 in decimal digits')
end
-- Control characters are one byte, or two that begin with 194.
if who == '' or #who > 256 or string.find(who, '%c') or string.find(who, '\194[\128-\159]') then
  return refused('the label is invalid: give 1 to 256 bytes without control characters')
end
if retention ~= '0' and not whole(retention, 1000, 315360000000) then
  return refused('the retention is invalid: give 0, or 1000 to 315360000000 milliseconds')
end
local word = 4
while word <= #ARGV do
  if not whole(ARGV[word], 1, 7000) or word + ARGV[word] > #ARGV then
    return refused('the commands cannot be parsed: give the number of its words before each')
  end
  word = word + ARGV[word] + 1
end

local mark = redis.call('GET', KEYS[1])
local last = mark and string.match(mark, '^(%d+) %d+ .')
if mark and not last then return {'damaged', mark} end
-- As numbers, because as text "9" is above "10". Tokens are below 2^53, so none is rounded.
if last and tonumber(token) < tonumber(last) then return {'stale', mark} end
local raised = not last or tonumber(token) > tonumber(last)
if raised then
  local time = redis.call('TIME')
  -- `..` and tostring lose digits above 1e14; %.0f does not. The token is kept as the text that was given.
  local millis = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
  local record = token .. ' ' .. millis .. ' ' .. who
  if retention == '0' then
    redis.call('SET', KEYS[1], record)
  else
    redis.call('SET', KEYS[1], record, 'PX', retention)
  end
end
local done, which, failed = {'done'}, 0, nil
word = 4
while word <= #ARGV and not failed do
  local words = tonumber(ARGV[word])
  local reply = redis.pcall(unpack(ARGV, word + 1, word + words))
  which, word = which + 1, word + words + 1
  if type(reply) == 'table' and reply.err then failed = {'failed', which, reply.err} end
  done[which + 1] = reply
end
-- Last, because Redis checks the memory only before a script's first write. And always, because only a write fails on a
-- replica, whose mark may be old.
if not raised then
  local kept
  if retention == '0' then
    kept = redis.pcall('PERSIST', KEYS[1])
  else
    kept = redis.pcall('PEXPIRE', KEYS[1], retention)
  end
  if type(kept) == 'table' and kept.err then failed = failed or {'failed', which + 1, kept.err} end
end
return failed or done
