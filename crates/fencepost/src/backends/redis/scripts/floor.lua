-- Ends an owner's grant at one node of several, and raises the mark.
-- {1, now} the mark is at the floor   {0, now} it was above it already
-- ARGV: value (of whom is broken), floor, retention, channel
--SLOW--
local owner, floor, retention, channel = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]
local value = redis.call('GET', lock)
if holder_of(value) == owner then redis.call('DEL', lock, said); value = false end
local r = read_record()
if floor <= r.last then return {0, now} end
local broken = r.holder == owner and r.last
if broken then r.broken = owner end
r.last, r.holder, r.ttl, r.granted, r.label = floor, '-', 0, now, '-'
write_record(r, retention)
if broken then notify_broken(channel, broken) end
if not value then wake() end
return {1, now}
