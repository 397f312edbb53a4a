-- Ends what the owner has: the lock, or its place in line. One who has nothing may yet come, if its
-- acquire was overtaken on the way: it is remembered, and refused then. Whoever was broken confirms with it that it
-- knows: the break looks for the same note.
-- 1 released, on the short way   {1, now} released   {0, now, why} not held
-- ARGV: owner, retention, remember (for how long, in ms); and one more if the outcome of an acquire of this
-- owner is unknown, so that one may still be under way whatever is found
local value = redis.call('GET', KEYS[1])
if value == ARGV[1] and not ARGV[4] then return redis.call('DEL', KEYS[1]) end
--SLOW--
local owner, retention, remember = unpack(ARGV)
local held = holder_of(value) == owner
if held then
  redis.call('DEL', lock, said)
  redis.call('PEXPIRE', record, keep_record(read_record(), 0, retention))
end
local waited = leave(owner)
if held or not value then wake() end
if ARGV[4] or not (held or waited) then bury(owner, remember, retention) end
if held or waited then return {1, now} end
return {0, now, why_not(owner, value)}
