-- Ends what the owner has: the lock, or its position. An owner that has nothing may have an acquire under way that was
-- overtaken: it is remembered as withdrawn, and refused when it comes. With this a broken holder confirms the break,
-- which waits for the same key.
-- 1 released, on the fast path   {1, now} released   {0, now, why} not held
-- ARGV: owner, retention, remember (for how long, in ms); and one more if the outcome of an acquire of this
-- owner is unknown, so that one may still arrive whatever is found
local value = redis.call('GET', KEYS[1])
if value == ARGV[1] and not ARGV[4] then return redis.call('DEL', KEYS[1]) end
--COMMON--
local owner, retention, remember = unpack(ARGV)
local held = holder_of(value) == owner
if held then
  redis.call('DEL', lock, published)
  redis.call('PEXPIRE', state, keep_state(read_state(), 0, retention))
end
local waited = leave(owner)
if held or not value then wake() end
if ARGV[4] or not (held or waited) then withdraw(owner, remember, retention) end
if held or waited then return {1, now} end
return {0, now, why_not(owner, value)}
