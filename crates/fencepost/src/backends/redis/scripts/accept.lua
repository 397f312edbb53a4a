-- Phase 2: accepts the token, if the key is still this attempt's and the token is above all earlier
-- ones; or if it was accepted already.
-- {1, now} accepted   {0, now} not
-- ARGV: owner, attempt, token, ttl, label, retention; and what a candidate publishes
--COMMON--
local owner, attempt, token, ttl, label, retention, value = unpack(ARGV)
token, ttl = tonumber(token), tonumber(ttl)
if redis.call('GET', lock) ~= owner .. ':' .. attempt then return {0, now} end
local r = read_state()
if token < r.last or token == r.last and r.holder ~= owner then return {0, now} end
if r.holder == owner and token == r.last then ttl = math.max(ttl, r.ttl) else r.granted = now end
r.last, r.holder, r.ttl, r.label = token, owner, ttl, label
write_state(r, retention)
if value then publish(owner, 0, value) end
leave(owner)
return {1, now}
