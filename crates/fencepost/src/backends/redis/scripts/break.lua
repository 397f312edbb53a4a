-- Ends the grant, whoever holds it, and draws a token above it.
-- {1, now, floor, token, label} broken; token 0 if the holder was another make of client   {0, now} free
-- {4, now} no tokens left
-- ARGV: retention
--SLOW--
local value = holder_of(redis.call('GET', lock))
if not value then return {0, now} end
local r = read_record()
local known, token, label = r.holder == value, r.last, r.label
r.last = math.max(r.last + 1, now)
if r.last > MAX_TOKEN then return {4, now} end
redis.call('DEL', lock)
if known then r.broken = value end
r.holder, r.ttl, r.granted, r.label = '-', 0, now, '-'
write_record(r, ARGV[1])
wake()
return {1, now, r.last, known and token or 0, known and label or ''}
