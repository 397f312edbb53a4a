-- Phase 1 of an attempt at several nodes: the key, if it is free or ours.
-- {1, now, last, mine} ours; mine is 1 if the last token was accepted from this owner
-- {0, now, pttl, holder, state, published} another owner's; a waiter is queued here
-- {3, now} withdrawn before it came
-- ARGV: owner, attempt (a number that rises), ttl, label, client (to wake; empty not to wait)
--COMMON--
local owner, attempt, ttl, label, client = unpack(ARGV)
local value = redis.call('GET', lock)
-- Refuses another layout before anything is written.
state_text()
local mine = holder_of(value) == owner
-- A vote that was overtaken by a later attempt must not put its own number into the key: its undo would
-- then delete the later attempt's key.
if mine and tonumber(string.match(value, ':(%d+)$') or 0) > tonumber(attempt) then return {3, now} end
local released = withdrawn .. owner
if redis.call('EXISTS', released, released .. ':' .. attempt) > 0 then return {3, now} end
if value and not mine then
  if client ~= '' then enqueue(owner, client, label) else leave(owner) end
  value = holder_of(value)
  return {0, now, redis.call('PTTL', lock), value, state_text(), value_of(value)}
end
-- If the lease is ours already, it is not shortened.
if mine then ttl = math.max(tonumber(ttl), redis.call('PTTL', lock)) end
redis.call('SET', lock, owner .. ':' .. attempt, 'PX', ttl)
local r = read_state()
return {1, now, r.last, r.holder == owner and 1 or 0}
