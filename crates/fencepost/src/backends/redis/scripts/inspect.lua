-- {1, now, value, pttl, record, said, waiting, {since, label, ...}} with at most `shown` waiters.
-- ARGV: shown
--SLOW--
local shown = tonumber(ARGV[1])
local value = redis.call('GET', lock)
local left = value and redis.call('PTTL', lock) or -2
local waiting, waiters = 0, {}
local line = redis.call('ZRANGE', queue, 0, -1, 'WITHSCORES')
for i = 1, #line, 2 do
  local place = redis.call('HGET', places, line[i])
  if is_kept(place) then
    waiting = waiting + 1
    if waiting <= shown then
      table.insert(waiters, line[i + 1])
      table.insert(waiters, string.match(place, '^%d+ %S+ (.*)$'))
    end
  end
end
value = holder_of(value)
return {1, now, value, left, redis.call('GET', record), said_by(value), waiting, waiters}
