-- What an operation needs only when there are waiters or other exceptions: it comes after the fast path, so that the
-- fast path does not pay for it. All keys of a lock are in the slot of its own key.
--   lock       the holder's owner id; a "+" after it says that its release has more to do than to delete it; on
--              one of several nodes (redlock) a ":" and the attempt follow it
--   state      "2 LAST SLOW BROKEN HOLDER TTL GRANTED LABEL": the layout's version; the highest token so far, in
--              16 digits; until when, in µs, an acquire must take the slow path, 0 if it need not; the owner that
--              was broken last, "-" if none; the owner who has the last token, "-" if nobody; its TTL in ms;
--              when it was granted, in µs, 0 if that is the token; its label
--   queue      a sorted set of the waiting owners, by arrival (µs)
--   positions  a hash, owner to "EXPIRES CLIENT LABEL": a position is a lease as well
--   withdrawn  exists if this owner was released while an acquire of it might still arrive, or after a break
--   published  "OWNER NUMBER VALUE": what a candidate publishes, and the number of that value; it counts only while
--              the lock is that owner's
local lock, state = KEYS[1], KEYS[2]
local tagged = string.sub(state, #'fencepost:lock:' + 1)
local queue, positions = 'fencepost:queue:' .. tagged, 'fencepost:positions:' .. tagged
local published, withdrawn = 'fencepost:value:' .. tagged, 'fencepost:withdrawn:' .. tagged .. ':'
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
-- How long a position in the queue is kept without a request from its waiter, in µs.
local POSITION_TTL = 1500000
local MAX_TOKEN = 9007199254740991

-- The state, false if there is none. One of another layout is refused: if it counted as absent, its tokens might
-- restart.
local function state_text()
  local text = redis.call('GET', state)
  local version = text and string.match(text, '^(%d+) ')
  if version and version ~= '2' then error('LAYOUT ' .. version .. ' 0 ' .. state) end
  -- That of layout 1 is a string. A hash of that name is a record of this layout.
  local old = not text and redis.pcall('GET', 'fencepost:record:' .. lock)
  if type(old) == 'string' then error('LAYOUT 1 ' .. (string.match(old, '^%d+') or '0') .. ' ' .. state) end
  return text
end

local function read_state()
  local text = state_text() or '2 0 0 - - 0 0 -'
  local last, slow, broken, holder, ttl, granted, label =
    string.match(text, '^2 (%d+) (%d+) (%S+) (%S+) (%d+) (%d+) (.*)$')
  if not last then error('the state of this lock is damaged; delete ' .. state) end
  return { last = tonumber(last), slow_until = tonumber(slow), broken = broken, holder = holder,
    ttl = tonumber(ttl), granted = tonumber(granted), label = label }
end

-- The state stays until a correct clock cannot issue a token as low as its last one, and for the retention after
-- that: counted from the token, not from now, which may be behind it. And it outlives `ttl`.
local function keep_state(r, ttl, retention)
  local keep = math.max(math.ceil((r.last - now) / 1000), 0) + retention
  return string.format('%.0f', math.max(keep, ttl))
end

-- `..` and tostring lose digits above 1e14; %.0f does not.
local function write_state(r, retention)
  local text = string.format('2 %016.0f %.0f %s %s %.0f %.0f %s',
    r.last, r.slow_until > now and r.slow_until or 0, r.broken, r.holder, r.ttl, r.granted, r.label)
  redis.call('SET', state, text, 'PX', keep_state(r, r.ttl, retention))
end

-- The lock's value without our suffix: the owner.
local function holder_of(value)
  return value and string.match(value, '^(%x+)[+:]') or value
end

-- Makes the release check the queue and the published value, or shorten a state that was kept for a long lease. Only
-- a value that the state says is ours is marked: that of a third-party client may look the same.
local function mark_lock(r)
  if redis.call('GET', lock) == r.holder then redis.call('APPEND', lock, '+') end
end

local function leave(owner)
  redis.call('ZREM', queue, owner)
  return redis.call('HDEL', positions, owner) == 1
end

local function is_live(position)
  local left = position and tonumber(string.match(position, '^%d+')) - now
  -- More than a whole TTL is left only if the clock was set back: then its age is unknown.
  return left and left > 0 and left <= POSITION_TTL
end

-- The first waiter whose position is live; those before it are dropped.
local function first()
  while true do
    local owner = redis.call('ZRANGE', queue, 0, 0)[1]
    if not owner then return nil end
    local position = redis.call('HGET', positions, owner)
    if is_live(position) then return owner, position end
    leave(owner)
  end
end

-- Wakes the first waiter, and only that one, when the lock is free. Without the right to publish, waiters still poll
-- every 250 ms.
local function wake(except)
  local owner, position = first()
  if owner and owner ~= except then
    redis.pcall('PUBLISH', 'fencepost:wake:' .. string.match(position, '^%d+ (%S+)'), owner)
  end
end

-- Notifies the holder of a grant that it was broken; its owner id stays a secret. A holder that is not notified learns
-- of it at its next renewal.
local function notify_broken(channel, token)
  redis.pcall('PUBLISH', channel, string.format('%.0f %s', token, lock))
end

-- The rest of the lease, in ms.
local function lease_left()
  local left = redis.call('PTTL', lock)
  -- One that an operator made permanent counts as the longest TTL; one about to end, as the shortest.
  if left == -1 then return 86400000 end
  return math.max(left, 100)
end

-- What this owner publishes, as "NUMBER VALUE"; false if nothing.
local function value_of(owner)
  local text = owner and redis.call('GET', published)
  if not text then return false end
  local who = string.match(text, '^(%S+) %d+ ')
  return who == owner and string.sub(text, #who + 2)
end

-- Expires with the lease. An older value that arrives late does not replace a newer one.
local function publish(owner, number, value)
  local before = value_of(owner)
  if before and tonumber(string.match(before, '^%d+')) > tonumber(number) then
    redis.call('PEXPIRE', published, lease_left())
  else
    redis.call('SET', published, owner .. ' ' .. number .. ' ' .. value, 'PX', lease_left())
  end
end

-- Remembers that an owner was released, for as long as a request of it may be under way. If the server has no memory
-- left, its lease is what ends a late acquire.
local function withdraw(owner, remember, retention)
  local r = read_state()
  if redis.pcall('SET', withdrawn .. owner, '', 'PX', remember).err then return end
  r.slow_until = math.max(r.slow_until, now + remember * 1000)
  -- It was kept for a lease that has ended.
  if redis.call('EXISTS', lock) == 0 then r.ttl = 0 end
  write_state(r, retention)
end

local function enqueue(owner, client, label)
  redis.call('ZADD', queue, 'NX', string.format('%.0f', now), owner)
  redis.call('HSET', positions, owner, string.format('%.0f %s %s', now + POSITION_TTL, client, label))
  redis.call('PEXPIRE', queue, POSITION_TTL / 1000)
  redis.call('PEXPIRE', positions, POSITION_TTL / 1000)
  -- A clock that is set back while this runs ends both keys at once. The next poll takes the position again.
  return redis.call('ZRANK', queue, owner) or 0
end

-- Why an owner does not hold the lock.
local function why_not(owner, value)
  if read_state().broken == owner then return 'broken' end
  if value then return 'taken' end
  return 'expired'
end
