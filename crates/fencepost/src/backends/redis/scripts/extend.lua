-- Restarts the lease at one node of several.
-- {1, now, token, ttl} extended   {0, now, why} not held
-- ARGV: owner, ttl (0 for unchanged), retention; and number and value as in renew.lua
--COMMON--
local owner, ttl, retention, number, published_value = unpack(ARGV)
local value = redis.call('GET', lock)
local r = read_state()
-- A node that has not accepted a token of this owner has no part in its grant.
if holder_of(value) ~= owner or r.holder ~= owner then return {0, now, why_not(owner, value)} end
r.ttl = math.max(tonumber(ttl), r.ttl)
redis.call('PEXPIRE', lock, r.ttl)
write_state(r, retention)
if published_value then publish(owner, number, published_value) else redis.call('PEXPIRE', published, r.ttl) end
return {1, now, r.last, r.ttl}
