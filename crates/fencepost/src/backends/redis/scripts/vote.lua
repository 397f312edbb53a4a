-- Phase 1 of an attempt at several nodes: the key, if it is free or ours.
-- {1, now, last, mine} ours; mine is 1 if the last token was accepted from this owner
-- {0, now, pttl, value, record, said} somebody else's; who waits is written down here
-- {3, now} withdrawn before it came
-- ARGV: owner, attempt (a number that rises), ttl, label, client (to wake; empty not to wait)
--SLOW--
local owner, attempt, ttl, label, client = unpack(ARGV)
local value = redis.call('GET', lock)
local mine = holder_of(value) == owner
-- One that was overtaken on the way by a later attempt must not have the key named after it: its undo
-- would take the later one's.
if mine and tonumber(string.match(value, ':(%d+)$') or 0) > tonumber(attempt) then return {3, now} end
local note = 'fencepost:gone:' .. owner
if redis.call('EXISTS', note, note .. ':' .. attempt) > 0 then return {3, now} end
if value and not mine then
  if client ~= '' then stand_in_line(owner, client, label) else leave(owner) end
  value = holder_of(value)
  return {0, now, redis.call('PTTL', lock), value, redis.call('GET', record), said_by(value)}
end
-- A lease that is ours already does not get shorter.
if mine then ttl = math.max(tonumber(ttl), redis.call('PTTL', lock)) end
redis.call('SET', lock, owner .. ':' .. attempt, 'PX', ttl)
local r = read_record()
return {1, now, r.last, r.holder == owner and 1 or 0}
