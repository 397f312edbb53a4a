-- Starts the lease of one node of several anew.
-- {1, now, token, ttl} extended   {0, now, why} not held
-- ARGV: owner, ttl (0 for as before), retention; and number and value as renew.lua has them
--SLOW--
local owner, ttl, retention, number, words = unpack(ARGV)
local value = redis.call('GET', lock)
local r = read_record()
-- A node that has not accepted a token of this owner has no part in its grant.
if holder_of(value) ~= owner or r.holder ~= owner then return {0, now, why_not(owner, value)} end
r.ttl = math.max(tonumber(ttl), r.ttl)
redis.call('PEXPIRE', lock, r.ttl)
write_record(r, retention)
if words then say(owner, number, words) else redis.call('PEXPIRE', said, r.ttl) end
return {1, now, r.last, r.ttl}
