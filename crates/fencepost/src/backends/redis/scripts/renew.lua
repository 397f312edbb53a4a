-- Starts the lease anew, with a longer TTL if one is asked for.
-- {1, now, token, ttl} renewed   {0, now, why} not held
-- ARGV: owner, ttl (0 for as before), retention; and if it says something else of itself from now on, the number
-- of that word, which rises, and the value
--SLOW--
local owner, ttl, retention, number, words = unpack(ARGV)
local value = redis.call('GET', lock)
if holder_of(value) ~= owner then return {0, now, why_not(owner, value)} end
local r = read_record()
-- A record that is gone (evicted, deleted by hand) is made anew, above all that was.
if r.holder ~= owner then
  r.last, r.granted, r.ttl, r.label = math.max(r.last + 1, now), now, lease_left(), '-'
end
ttl = math.max(tonumber(ttl), r.ttl)
redis.call('PEXPIRE', lock, ttl)
if r.holder == owner and ttl == r.ttl then
  redis.call('PEXPIRE', record, keep_record(r, ttl, retention))
else
  r.holder, r.ttl = owner, ttl
  write_record(r, retention)
end
if words or ttl > tonumber(retention) then mark_lock(r) end
-- Of a lock that bears no mark nothing is said.
if words then say(owner, number, words) elseif value ~= owner then redis.call('PEXPIRE', said, ttl) end
return {1, now, r.last, ttl}
