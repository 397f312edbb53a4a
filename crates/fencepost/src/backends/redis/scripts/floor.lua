-- Ends an owner's grant at one node of several, and raises the mark.
-- {1, now} the mark is at the floor   {0, now} it was above it already
-- ARGV: value (of whom is broken), floor, retention
--SLOW--
local owner, floor, retention = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local value = redis.call('GET', lock)
if holder_of(value) == owner then redis.call('DEL', lock, said); value = false end
local r = read_record()
if floor <= r.last then return {0, now} end
if r.holder == owner then r.broken = owner end
r.last, r.holder, r.ttl, r.granted, r.label = floor, '-', 0, now, '-'
write_record(r, retention)
if not value then wake() end
return {1, now}
