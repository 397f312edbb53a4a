-- Undoes one attempt, and no later one of the same owner. One that has not arrived yet is remembered as withdrawn, and
-- refused when it arrives. The owner's position in the queue stays.
-- {1, now} undone   {0, now} there was nothing
-- ARGV: owner, attempt, remember
--COMMON--
local owner, attempt, remember = unpack(ARGV)
local value = redis.call('GET', lock)
if value == owner .. ':' .. attempt then
  redis.call('DEL', lock, published)
  wake(owner)
  return {1, now}
end
redis.pcall('SET', withdrawn .. owner .. ':' .. attempt, '', 'PX', remember)
return {0, now}
