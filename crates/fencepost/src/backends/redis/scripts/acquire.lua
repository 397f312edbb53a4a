-- Takes the lock if it is free and nobody was first; else stands in line, or leaves it.
-- "token": granted as asked and at that time, on the short way
-- {1, now, token, ttl} granted   {2, now, pttl, ahead, foreign} in line   {0, now, pttl, value, record, said} held
-- {3, now} withdrawn before it came   {4, now} no tokens left
-- ARGV: owner, ttl, " 0 - OWNER TTL 0 LABEL" (what follows the token in the record), client (to wake; empty
-- not to wait), retention; and one more if the release has more to see to than the lock: if the TTL is longer than the
-- retention, or a value follows, which is what a candidate says of itself
if not ARGV[6] and redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then
  local last = redis.call('GET', KEYS[2])
  local time = redis.call('TIME')
  -- Sixteen digits, as strings: arithmetic and formatting are what a short script spends its time on.
  local token = time[1] .. string.sub('00000' .. time[2], -6)
  -- Nobody waits and nothing was broken, and the time is above the last token.
  if #token == 16
    and (not last or string.sub(last, 17, 21) == ' 0 - ' and string.sub(last, 1, 16) < token) then
    redis.call('SET', KEYS[2], token .. ARGV[3], 'PX', ARGV[5])
    return token
  end
  -- The long way decides anew; nobody has seen this.
  redis.call('DEL', KEYS[1])
end
--SLOW--
local owner, ttl, tail, client, retention, more, words = unpack(ARGV)
local label = string.match(tail, '^ 0 %- %x+ %d+ 0 (.*)$')
ttl = tonumber(ttl)
local value = redis.call('GET', lock)
local r = read_record()

if holder_of(value) == owner then
  -- A retry: the same token, and a lease that does not get shorter.
  if r.holder ~= owner then r.last = math.max(r.last + 1, now); r.granted = now; r.ttl = lease_left() end
  r.holder, r.label, r.ttl = owner, label, math.max(ttl, r.ttl)
  redis.call('PEXPIRE', lock, r.ttl)
  if more then mark_lock(r) end
  write_record(r, retention)
  if words then say(owner, 0, words) end
  return {1, now, r.last, r.ttl}
end

if r.broken == owner or redis.call('EXISTS', 'fencepost:gone:' .. owner) == 1 then return {3, now} end
local head = first()
if not value and (not head or head == owner) then
  r.last = math.max(r.last + 1, now)
  if r.last > MAX_TOKEN then return {4, now} end
  redis.call('SET', lock, owner, 'PX', ttl)
  r.holder, r.ttl, r.granted, r.label = owner, ttl, now, label
  write_record(r, retention)
  leave(owner)
  if more or first() then mark_lock(r) end
  if words then say(owner, 0, words) end
  return {1, now, r.last, ttl}
end

local left = value and redis.call('PTTL', lock) or -2
if client ~= '' then
  local ahead = stand_in_line(owner, client, label)
  if value then mark_lock(r) end
  r.more = math.max(r.more, now + PLACE)
  write_record(r, retention)
  return {2, now, left, ahead, value and holder_of(value) ~= r.holder and 1 or 0}
end
leave(owner)
value = holder_of(value)
return {0, now, left, value, redis.call('GET', record), said_by(value)}
