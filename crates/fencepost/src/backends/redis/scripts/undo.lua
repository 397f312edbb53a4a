-- Takes one attempt back, and not a later one of the same owner. If it has not come yet it is remembered,
-- and refused when it does. The owner's place in line stays.
-- {1, now} taken back   {0, now} there was nothing
-- ARGV: owner, attempt, remember
--SLOW--
local owner, attempt, remember = unpack(ARGV)
local value = redis.call('GET', lock)
if value == owner .. ':' .. attempt then
  redis.call('DEL', lock, said)
  wake(owner)
  return {1, now}
end
redis.pcall('SET', 'fencepost:gone:' .. owner .. ':' .. attempt, '', 'PX', remember)
return {0, now}
