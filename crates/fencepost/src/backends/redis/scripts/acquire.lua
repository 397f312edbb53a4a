-- Takes the lock if it is free and no waiter is ahead; otherwise takes a position in the queue, or leaves it.
-- "token": granted as asked and at that time, on the fast path
-- {1, now, token, ttl} granted   {2, now, pttl, ahead, third_party} queued
-- {0, now, pttl, holder, state, published} held   {3, now} withdrawn before it came   {4, now} no tokens left
-- ARGV: owner, ttl, " 0 - OWNER TTL 0 LABEL" (what follows the token in the state), client (to wake; empty
-- not to wait), retention; and one more if the release has more to do than to delete the lock: if the TTL is longer than
-- the retention, or a value follows, which is what a candidate publishes
if not ARGV[6] and redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then
  local last = redis.call('GET', KEYS[2])
  local time = redis.call('TIME')
  -- Sixteen digits, as strings: arithmetic and formatting are what a short script spends its time on.
  local token = time[1] .. string.sub('00000' .. time[2], -6)
  local fast
  if last then
    -- Nobody waits and nothing was broken, and the time is above the last token.
    fast = string.sub(last, 1, 2) == '2 ' and string.sub(last, 19, 23) == ' 0 - '
      and string.sub(last, 3, 18) < token
  else
    -- Nor is there anything of layout 1.
    fast = redis.call('EXISTS', 'fencepost:record:' .. KEYS[1]) == 0
  end
  if fast and #token == 16 then
    redis.call('SET', KEYS[2], '2 ' .. token .. ARGV[3], 'PX', ARGV[5])
    return token
  end
  -- The slow path decides again; no other script has seen this.
  redis.call('DEL', KEYS[1])
end
--COMMON--
local owner, ttl, tail, client, retention, more, published_value = unpack(ARGV)
local label = string.match(tail, '^ 0 %- %x+ %d+ 0 (.*)$')
ttl = tonumber(ttl)
local value = redis.call('GET', lock)
local r = read_state()

if holder_of(value) == owner then
  -- A retry: the same token, and a lease that does not get shorter.
  if r.holder ~= owner then r.last = math.max(r.last + 1, now); r.granted = now; r.ttl = lease_left() end
  r.holder, r.label, r.ttl = owner, label, math.max(ttl, r.ttl)
  redis.call('PEXPIRE', lock, r.ttl)
  if more then mark_lock(r) end
  write_state(r, retention)
  if published_value then publish(owner, 0, published_value) end
  return {1, now, r.last, r.ttl}
end

if r.broken == owner or redis.call('EXISTS', withdrawn .. owner) == 1 then return {3, now} end
local head = first()
if not value and (not head or head == owner) then
  r.last = math.max(r.last + 1, now)
  if r.last > MAX_TOKEN then return {4, now} end
  redis.call('SET', lock, owner, 'PX', ttl)
  r.holder, r.ttl, r.granted, r.label = owner, ttl, now, label
  write_state(r, retention)
  leave(owner)
  if more or first() then mark_lock(r) end
  if published_value then publish(owner, 0, published_value) end
  return {1, now, r.last, ttl}
end

local left = value and redis.call('PTTL', lock) or -2
if client ~= '' then
  local ahead = enqueue(owner, client, label)
  if value then mark_lock(r) end
  r.slow_until = math.max(r.slow_until, now + POSITION_TTL)
  write_state(r, retention)
  return {2, now, left, ahead, value and holder_of(value) ~= r.holder and 1 or 0}
end
leave(owner)
value = holder_of(value)
return {0, now, left, value, state_text(), value_of(value)}
