-- What the steps of a record share. The record is a hash:
--   state   running, done or failed
--   token   of the last runner
--   label   of that runner
--   since   when it came to stand so, in µs
--   result  what came of it; empty while it runs
-- Its time is over when the key expires, and then it is absent.
local book = KEYS[2]
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

local function read()
  local state, token = unpack(redis.call('HMGET', book, 'state', 'token'))
  if state and not tonumber(token or '') then error('this record is damaged; delete ' .. book) end
  return state, tonumber(token or '')
end

-- All fields in one command, which is also the first that takes memory: refused for want of it, nothing of
-- the old record is lost. (`..` and tostring lose digits above 1e14; %.0f does not.)
local function write(state, token, label, result, keep)
  redis.call('HSET', book, 'state', state, 'token', token, 'label', label,
    'since', string.format('%.0f', now), 'result', result)
  redis.call('PEXPIREAT', book, string.format('%.0f', math.ceil(now / 1000) + keep))
end

local function entry(status, brief)
  local state, token, label, since = unpack(redis.call('HMGET', book, 'state', 'token', 'label', 'since'))
  local result = brief and '' or redis.call('HGET', book, 'result')
  return {status, now, state, token, label, since, redis.call('PTTL', book), result}
end
