-- Ends the grant of whom the caller saw, and nobody else's, and draws a token above it.
-- {1, now, floor} broken   {0, now} not there   {4, now} no tokens left
-- {5, now} broken before: this was sent twice
-- ARGV: retention, value, channel
--SLOW--
local retention, seen, channel = unpack(ARGV)
local value = holder_of(redis.call('GET', lock))
local r = read_record()
if value ~= seen then
  if r.broken == seen then return {5, now} end
  return {0, now}
end
local broken = r.holder == value and r.last
r.last = math.max(r.last + 1, now)
if r.last > MAX_TOKEN then return {4, now} end
redis.call('DEL', lock, said)
if broken then r.broken = value end
r.holder, r.ttl, r.granted, r.label = '-', 0, now, '-'
write_record(r, retention)
if broken then notify_broken(channel, broken) end
wake()
return {1, now, r.last}
