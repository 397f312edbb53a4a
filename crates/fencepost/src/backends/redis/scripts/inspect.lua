-- {1, now, holder, pttl, state, published, waiting, {since, label, ...}} with at most `shown` waiters.
-- ARGV: shown
--COMMON--
local shown = tonumber(ARGV[1])
local value = redis.call('GET', lock)
local left = value and redis.call('PTTL', lock) or -2
local waiting, waiters = 0, {}
local queued = redis.call('ZRANGE', queue, 0, -1, 'WITHSCORES')
for i = 1, #queued, 2 do
  local position = redis.call('HGET', positions, queued[i])
  if is_live(position) then
    waiting = waiting + 1
    if waiting <= shown then
      table.insert(waiters, queued[i + 1])
      table.insert(waiters, string.match(position, '^%d+ %S+ (.*)$'))
    end
  end
end
value = holder_of(value)
return {1, now, value, left, state_text(), value_of(value), waiting, waiters}
