-- Restarts the lease, with a longer TTL if one is requested.
-- {1, now, token, ttl} renewed   {0, now, why} not held
-- ARGV: owner, ttl (0 for unchanged), retention; and if it publishes another value from now on, the number of
-- that value, which rises, and the value
--COMMON--
local owner, ttl, retention, number, published_value = unpack(ARGV)
local value = redis.call('GET', lock)
if holder_of(value) ~= owner then return {0, now, why_not(owner, value)} end
local r = read_state()
-- A state that is gone (evicted or deleted) is created again, with a token above all earlier ones.
if r.holder ~= owner then
  r.last, r.granted, r.ttl, r.label = math.max(r.last + 1, now), now, lease_left(), '-'
end
ttl = math.max(tonumber(ttl), r.ttl)
redis.call('PEXPIRE', lock, ttl)
if r.holder == owner and ttl == r.ttl then
  redis.call('PEXPIRE', state, keep_state(r, ttl, retention))
else
  r.holder, r.ttl = owner, ttl
  write_state(r, retention)
end
if published_value or ttl > tonumber(retention) then mark_lock(r) end
-- A lock without a "+" has no value.
if published_value then publish(owner, number, published_value) elseif value ~= owner then redis.call('PEXPIRE', published, ttl) end
return {1, now, r.last, ttl}
