-- Shared by the operations of a record. The record is a hash:
--   layout  2, the layout's version
--   state   running, done or failed
--   token   of the last runner
--   label   of that runner
--   since   when it reached this state, in µs
--   result  the result, or the message of the failure; empty while it runs
-- Its retention is over when the key expires, and then it is absent.
local record = KEYS[2]
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

-- One of another layout is refused: if it counted as absent, its work would run again.
local function read()
  local layout, state, token = unpack(redis.call('HMGET', record, 'layout', 'state', 'token'))
  if layout and layout ~= '2' then error('LAYOUT ' .. layout .. ' 0 ' .. record) end
  if not state and redis.call('EXISTS', 'fencepost:once:' .. KEYS[1]) == 1 then
    error('LAYOUT 1 0 fencepost:once:' .. KEYS[1])
  end
  if state and not (layout and tonumber(token or '')) then error('this record is damaged; delete ' .. record) end
  return state, tonumber(token or '')
end

-- All fields in one command, which is also the first that needs memory: if it is refused, the old record is
-- unchanged. (`..` and tostring lose digits above 1e14; %.0f does not.)
local function write(state, token, label, result, retention)
  redis.call('HSET', record, 'layout', '2', 'state', state, 'token', token, 'label', label,
    'since', string.format('%.0f', now), 'result', result)
  redis.call('PEXPIREAT', record, string.format('%.0f', math.ceil(now / 1000) + retention))
end

local function info(status, brief)
  local state, token, label, since = unpack(redis.call('HMGET', record, 'state', 'token', 'label', 'since'))
  local result = brief and '' or redis.call('HGET', record, 'result')
  return {status, now, state, token, label, since, redis.call('PTTL', record), result}
end
