-- What a step needs only when others wait, or something is out of the ordinary: it stands behind the step's
-- short way, so that the short way does not pay for it.
--   lock    the holder's owner id; a "+" behind it says that there is more to see to when it is released;
--           on one of several nodes (redlock) a ":" and the attempt stand behind it
--   record  "LAST MORE BROKEN HOLDER TTL GRANTED LABEL": the highest token so far, in 16 digits; until when,
--           in µs, there may be more to see to before the lock is granted, 0 if there is not; the owner that
--           was broken last, "-" if none; the owner who has the last token, "-" if nobody; its TTL in ms;
--           when it was granted, in µs, 0 if the token tells; its label.
--   queue   a sorted set of the owners who wait, by when they came (µs)
--   places  a hash, owner to "DEADLINE CLIENT LABEL": a place is a lease as well
--   gone    is there if this owner was released while an acquire of it might still arrive, or after a break
--   said    "OWNER NUMBER VALUE": what a candidate says of itself, and in which word of its own; it counts
--           only while the lock is that owner's
local lock, record = KEYS[1], KEYS[2]
local queue, places = 'fencepost:queue:' .. lock, 'fencepost:places:' .. lock
local said = 'fencepost:value:' .. lock
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
-- How long a place in the queue is kept without a word from its waiter, in µs.
local PLACE = 1500000
local MAX_TOKEN = 9007199254740991

local function read_record()
  local text = redis.call('GET', record)
  if not text then text = '0 0 - - 0 0 -' end
  local last, more, broken, holder, ttl, granted, label =
    string.match(text, '^(%d+) (%d+) (%S+) (%S+) (%d+) (%d+) (.*)$')
  if not last then error('the record of this lock is damaged; delete ' .. record) end
  return { last = tonumber(last), more = tonumber(more), broken = broken, holder = holder,
    ttl = tonumber(ttl), granted = tonumber(granted), label = label }
end

-- The record stays until no clock that is right could hand out a token as low as its last one, and the
-- retention beyond: counted from the token, not from now, which may be behind it. And it outlives `ttl`.
local function keep_record(r, ttl, retention)
  local keep = math.max(math.ceil((r.last - now) / 1000), 0) + retention
  return string.format('%.0f', math.max(keep, ttl))
end

-- `..` and tostring lose digits above 1e14; %.0f does not.
local function write_record(r, retention)
  local text = string.format('%016.0f %.0f %s %s %.0f %.0f %s',
    r.last, r.more > now and r.more or 0, r.broken, r.holder, r.ttl, r.granted, r.label)
  redis.call('SET', record, text, 'PX', keep_record(r, r.ttl, retention))
end

-- The lock's value without our signs: whose it is.
local function holder_of(value)
  return value and string.match(value, '^(%x+)[+:]') or value
end

-- Its release shall look at the queue and at what was said, or cut short a record that was kept for a long lease. Only what the
-- record says is ours is marked: the value of another make of client is its own, however alike it looks.
local function mark_lock(r)
  if redis.call('GET', lock) == r.holder then redis.call('APPEND', lock, '+') end
end

local function leave(owner)
  redis.call('ZREM', queue, owner)
  return redis.call('HDEL', places, owner) == 1
end

local function is_kept(place)
  local left = place and tonumber(string.match(place, '^%d+')) - now
  -- More than a whole place is left only if the clock was set back: then nobody knows how old it is.
  return left and left > 0 and left <= PLACE
end

-- The first in line whose place is still kept; those before it are dropped.
local function first()
  while true do
    local owner = redis.call('ZRANGE', queue, 0, 0)[1]
    if not owner then return nil end
    local place = redis.call('HGET', places, owner)
    if is_kept(place) then return owner, place end
    leave(owner)
  end
end

-- Tells the first in line, and only that one, that the lock is free. A user who may not publish still
-- has the waiters' own look every 250 ms.
local function wake(except)
  local owner, place = first()
  if owner and owner ~= except then
    redis.pcall('PUBLISH', 'fencepost:wake:' .. string.match(place, '^%d+ (%S+)'), owner)
  end
end

-- Notifies the holder of a grant that it was broken; its owner id stays a secret. A holder that is not notified learns
-- of it at its next renewal.
local function notify_broken(channel, token)
  redis.pcall('PUBLISH', channel, string.format('%.0f %s', token, lock))
end

-- What is left of the lease, in ms.
local function lease_left()
  local left = redis.call('PTTL', lock)
  -- One that was made to last for ever by hand is as long as ours can be; one about to end, as short.
  if left == -1 then return 86400000 end
  return math.max(left, 100)
end

-- What this owner says of itself, as "NUMBER VALUE"; false if nothing.
local function said_by(owner)
  local text = owner and redis.call('GET', said)
  if not text then return false end
  local who = string.match(text, '^(%S+) %d+ ')
  return who == owner and string.sub(text, #who + 2)
end

-- For as long as the lease runs. A word that comes late does not replace a later one.
local function say(owner, number, value)
  local before = said_by(owner)
  if before and tonumber(string.match(before, '^%d+')) > tonumber(number) then
    redis.call('PEXPIRE', said, lease_left())
  else
    redis.call('SET', said, owner .. ' ' .. number .. ' ' .. value, 'PX', lease_left())
  end
end

-- Remembers that an owner was released, for as long as a message of it may be under way. Without memory for
-- it, it is not remembered: then its lease is what ends a late acquire.
local function bury(owner, remember, retention)
  if redis.pcall('SET', 'fencepost:gone:' .. owner, '', 'PX', remember).err then return end
  local r = read_record()
  r.more = math.max(r.more, now + remember * 1000)
  -- It was kept for a lease that is over.
  if redis.call('EXISTS', lock) == 0 then r.ttl = 0 end
  write_record(r, retention)
end

local function stand_in_line(owner, client, label)
  redis.call('ZADD', queue, 'NX', string.format('%.0f', now), owner)
  redis.call('HSET', places, owner, string.format('%.0f %s %s', now + PLACE, client, label))
  redis.call('PEXPIRE', queue, PLACE / 1000)
  redis.call('PEXPIRE', places, PLACE / 1000)
  return redis.call('ZRANK', queue, owner)
end

-- Why an owner does not hold the lock.
local function why_not(owner, value)
  if read_record().broken == owner then return 'broken' end
  if value then return 'taken' end
  return 'expired'
end
