-- Ends an owner's grant at one node of several, and raises the last token.
-- {1, now} the last token is the floor   {0, now} it was above it already
-- ARGV: value (of the broken owner), floor, retention, channel
--COMMON--
local owner, floor, retention, channel = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]
local value = redis.call('GET', lock)
-- Refuses another layout before anything is written.
state_text()
if holder_of(value) == owner then redis.call('DEL', lock, published); value = false end
local r = read_state()
if floor <= r.last then return {0, now} end
local broken = r.holder == owner and r.last
if broken then r.broken = owner end
r.last, r.holder, r.ttl, r.granted, r.label = floor, '-', 0, now, '-'
write_state(r, retention)
if broken then notify_broken(channel, broken) end
if not value then wake() end
return {1, now}
