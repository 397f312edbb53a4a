-- Sets or deletes the mark, and logs the reset: one step.
--   KEYS  the mark; the list of resets
--   ARGV  the new token, 0 to delete; by whom; why; retention in ms, 0 for ever
-- Returns the previous mark, or nil.
local to, by, why, retention = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
-- Of another type: one more reason to reset it.
local old = redis.pcall('GET', KEYS[1])
if not old and to == '0' then return false end
local from = type(old) == 'string' and string.match(old, '^(%d+) %d+ .') or '0'
local time = redis.call('TIME')
local millis = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
-- First, because it fails if that key has another type: then nothing is changed.
redis.call('RPUSH', KEYS[2], from .. ' ' .. to .. ' ' .. millis .. '\n' .. by .. '\n' .. why)
redis.call('LTRIM', KEYS[2], -1000, -1)
if to == '0' then
  redis.call('DEL', KEYS[1])
else
  redis.call('SET', KEYS[1], to .. ' ' .. millis .. ' ' .. by)
  if retention ~= '0' then redis.call('PEXPIRE', KEYS[1], retention) end
end
return type(old) == 'string' and old or false
