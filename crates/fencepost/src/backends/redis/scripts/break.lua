-- Ends the grant that the caller saw, and no other one, and draws a token above it.
-- {1, now, floor} broken   {0, now} ended before   {4, now} no tokens left
-- {5, now} broken before: this was sent twice
-- ARGV: retention, value, channel
--COMMON--
local retention, seen, channel = unpack(ARGV)
local value = holder_of(redis.call('GET', lock))
local r = read_state()
if value ~= seen then
  if r.broken == seen then return {5, now} end
  return {0, now}
end
local broken = r.holder == value and r.last
r.last = math.max(r.last + 1, now)
if r.last > MAX_TOKEN then return {4, now} end
redis.call('DEL', lock, published)
if broken then r.broken = value end
r.holder, r.ttl, r.granted, r.label = '-', 0, now, '-'
write_state(r, retention)
if broken then notify_broken(channel, broken) end
wake()
return {1, now, r.last}
