-- The component "locks", version 2: the tables and the functions of locks. docs/layouts/postgres.md is the same for
-- users.
--
--   tokens     issues every token of this database; it only rises
--   locks      a row per name in use. `owner` is null while it is free; a grant ends at `expires`, by the
--              server's clock. `slow_path` says that the fast paths of acquire and release are not enough: there is
--              a waiter, or a withdrawn owner.
--   waiters    the queue, by arrival. A position is a lease as well: it ends at `expires`.
--   withdrawn  owners that were released and whose acquire may still arrive: it is refused until `expires`
--
-- What must hold: every read and write about a name, except on the fast paths and in views, happens under the lock of
-- its row in `locks`. A statement of a function sees everything that was committed when it began, so a statement after
-- the row is locked sees everything that was done under that lock before. (Under REPEATABLE READ and above it does not:
-- the server refuses a step whose row has changed, and the client retries; but a new waiter may not be seen, and may be
-- overtaken.)
--
-- A step that waits for a row gives up after 1.4 s, and the client retries: so a client that is gone leaves no step
-- waiting at the server.
--
-- A token is drawn by an UPDATE of the lock's row. If that has to wait for the row, PostgreSQL evaluates it
-- again on the row that it then finds, the token included: so tokens rise in the order of grants.

-- It outlives the tables of an older layout, so that tokens go on from there.
CREATE SEQUENCE IF NOT EXISTS fencepost.tokens AS bigint MINVALUE 1 MAXVALUE 9007199254740991 NO CYCLE CACHE 1;

CREATE TABLE fencepost.locks (
  name text COLLATE "C" PRIMARY KEY,
  token bigint NOT NULL DEFAULT 0,
  ttl_ms bigint NOT NULL DEFAULT 0,
  granted timestamptz NOT NULL DEFAULT clock_timestamp(),
  expires timestamptz NOT NULL DEFAULT clock_timestamp(),
  owner uuid,
  broken uuid,
  broken_token bigint,
  slow_path boolean NOT NULL DEFAULT false,
  label text NOT NULL DEFAULT '-'
) WITH (fillfactor = 50);

CREATE TABLE fencepost.waiters (
  id bigint GENERATED ALWAYS AS IDENTITY,
  name text COLLATE "C" NOT NULL,
  owner uuid NOT NULL,
  since timestamptz NOT NULL,
  expires timestamptz NOT NULL,
  channel text NOT NULL,
  label text NOT NULL,
  PRIMARY KEY (name, id),
  UNIQUE (name, owner)
) WITH (fillfactor = 50);

CREATE TABLE fencepost.withdrawn (
  name text COLLATE "C" NOT NULL,
  owner uuid NOT NULL,
  expires timestamptz NOT NULL,
  PRIMARY KEY (name, owner)
);

-- How long a position is kept without a request from its waiter.
CREATE FUNCTION fencepost.position_ttl() RETURNS interval
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT interval '1500 ms' $$;

CREATE FUNCTION fencepost.ms_between(a timestamptz, b timestamptz) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT (pg_catalog.date_part('epoch', b - a) * 1000)::bigint $$;

-- Drops the positions that have expired, and returns the first waiter. More than a whole TTL is left only if the clock
-- was set back: then the age of a position is unknown.
CREATE FUNCTION fencepost.first_waiter(p_name text, p_now timestamptz) RETURNS uuid
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  first uuid;
BEGIN
  DELETE FROM fencepost.waiters w
   WHERE w.name = p_name AND (w.expires <= p_now OR w.expires > p_now + fencepost.position_ttl());
  SELECT w.owner INTO first FROM fencepost.waiters w WHERE w.name = p_name ORDER BY w.id LIMIT 1;
  RETURN first;
END $$;

-- Notifies the first waiter only that the lock is free; false if there is none. Not by its whole owner id, which is a
-- secret.
CREATE FUNCTION fencepost.wake(p_name text, p_now timestamptz) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  first uuid := fencepost.first_waiter(p_name, p_now);
BEGIN
  PERFORM pg_notify(w.channel, left(w.owner::text, 8))
     FROM fencepost.waiters w WHERE w.name = p_name AND w.owner = first;
  RETURN FOUND;
END $$;

-- Whether there is a waiter or a withdrawn owner, which the fast paths do not look for.
CREATE FUNCTION fencepost.needs_slow_path(p_name text, p_now timestamptz) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  DELETE FROM fencepost.withdrawn n WHERE n.name = p_name AND n.expires <= p_now;
  RETURN EXISTS (SELECT FROM fencepost.waiters w WHERE w.name = p_name)
      OR EXISTS (SELECT FROM fencepost.withdrawn n WHERE n.name = p_name);
END $$;

-- Locks the row of a name, and creates it if it is missing.
CREATE FUNCTION fencepost.lock_row(p_name text) RETURNS fencepost.locks
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  r fencepost.locks;
BEGIN
  LOOP
    SELECT * INTO r FROM fencepost.locks l WHERE l.name = p_name FOR UPDATE;
    IF FOUND THEN RETURN r; END IF;
    -- On the slow path until it is checked: there may be a withdrawn owner from before.
    INSERT INTO fencepost.locks (name, slow_path) VALUES (p_name, true) ON CONFLICT DO NOTHING;
  END LOOP;
END $$;

-- Why an owner does not hold a lock.
CREATE FUNCTION fencepost.why_not(r fencepost.locks, p_owner uuid, p_now timestamptz) RETURNS text
LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE WHEN r.broken = p_owner THEN 'broken'
              WHEN r.owner <> p_owner AND r.expires > p_now THEN 'taken'
              ELSE 'expired' END
$$;

-- Refuses values that our clients never send: other clients would have to handle them.
CREATE FUNCTION fencepost.check_request(p_name text, p_ttl bigint, p_label text, p_channel text) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF (octet_length(p_name) BETWEEN 1 AND 512 AND octet_length(p_label) BETWEEN 1 AND 256
      AND p_name || p_label !~ E'[\\u0001-\\u001f\\u007f-\\u009f]'
      AND p_ttl BETWEEN 100 AND 86400000
      AND (p_channel IS NULL OR p_channel ~ '^fencepost_[0-9a-f]{32}$')) IS NOT TRUE THEN
    RAISE EXCEPTION 'not a valid request for a lock: name %, label %, ttl % ms, channel %',
      to_json(p_name), to_json(p_label), p_ttl, to_json(p_channel) USING ERRCODE = '22023';
  END IF;
END $$;

-- Takes the lock if it is free and no waiter is ahead; otherwise takes or refreshes a position if a channel to notify is
-- given, or leaves the queue.
--   1 granted: token, ttl     2 queued: left (of the holder's lease), ahead     3 withdrawn before it came
--   0 held: left, token, ttl, held and label of the holder, if there is one; otherwise waiters are ahead
CREATE FUNCTION fencepost.acquire(
  p_name text, p_owner uuid, p_ttl bigint, p_label text, p_channel text,
  OUT status int, OUT r_token bigint, OUT r_ttl bigint, OUT r_left bigint, OUT r_ahead bigint,
  OUT r_held bigint, OUT r_label text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '1400 ms' AS $$
DECLARE
  r fencepost.locks;
  now timestamptz;
  first uuid;
  held boolean;
BEGIN
  PERFORM fencepost.check_request(p_name, p_ttl, p_label, p_channel);
  UPDATE fencepost.locks l
     SET token = nextval('fencepost.tokens'), owner = p_owner, ttl_ms = p_ttl, label = p_label,
         granted = clock_timestamp(), expires = clock_timestamp() + p_ttl * interval '1 ms'
   WHERE l.name = p_name AND NOT l.slow_path AND (l.owner IS NULL OR l.expires <= clock_timestamp())
     AND l.broken IS DISTINCT FROM p_owner
  RETURNING l.token INTO r_token;
  IF FOUND THEN
    status := 1; r_ttl := p_ttl;
    RETURN;
  END IF;

  -- If no position is requested, the row is not locked: a row lock is a write to disk.
  IF p_channel IS NULL THEN
    SELECT * INTO r FROM fencepost.locks l WHERE l.name = p_name;
    now := clock_timestamp();
    IF r.owner <> p_owner AND r.expires > now
       AND NOT EXISTS (SELECT FROM fencepost.waiters w WHERE w.name = p_name AND w.owner = p_owner) THEN
      status := 0; r_token := r.token; r_ttl := r.ttl_ms; r_label := r.label;
      r_left := fencepost.ms_between(now, r.expires); r_held := fencepost.ms_between(r.granted, now);
      RETURN;
    END IF;
  END IF;

  r := fencepost.lock_row(p_name);
  now := clock_timestamp();
  held := r.owner IS NOT NULL AND r.expires > now;

  IF held AND r.owner = p_owner THEN
    -- A retry: the same token, and a lease that does not get shorter.
    status := 1; r_token := r.token; r_ttl := greatest(p_ttl, r.ttl_ms);
    UPDATE fencepost.locks l
       SET ttl_ms = r_ttl, label = p_label, expires = clock_timestamp() + r_ttl * interval '1 ms'
     WHERE l.name = p_name;
    RETURN;
  END IF;

  IF r.broken = p_owner
     OR EXISTS (SELECT FROM fencepost.withdrawn n WHERE n.name = p_name AND n.owner = p_owner AND n.expires > now)
  THEN
    status := 3;
    RETURN;
  END IF;

  first := fencepost.first_waiter(p_name, now);
  IF NOT held AND (first IS NULL OR first = p_owner) THEN
    DELETE FROM fencepost.waiters w WHERE w.name = p_name AND w.owner = p_owner;
    UPDATE fencepost.locks l
       SET token = nextval('fencepost.tokens'), owner = p_owner, ttl_ms = p_ttl, label = p_label,
           granted = clock_timestamp(), expires = clock_timestamp() + p_ttl * interval '1 ms',
           slow_path = fencepost.needs_slow_path(p_name, now)
     WHERE l.name = p_name
    RETURNING l.token INTO r_token;
    status := 1; r_ttl := p_ttl;
    RETURN;
  END IF;

  -- A position need not survive a crash: do not wait for the disk.
  PERFORM set_config('synchronous_commit', 'off', true);
  IF held THEN r_left := fencepost.ms_between(now, r.expires); END IF;
  IF p_channel IS NOT NULL THEN
    UPDATE fencepost.waiters w SET expires = now + fencepost.position_ttl(), channel = p_channel
     WHERE w.name = p_name AND w.owner = p_owner;
    IF NOT FOUND THEN
      INSERT INTO fencepost.waiters (name, owner, since, expires, channel, label)
      VALUES (p_name, p_owner, now, now + fencepost.position_ttl(), p_channel, p_label);
    END IF;
    IF NOT r.slow_path THEN
      UPDATE fencepost.locks l SET slow_path = true WHERE l.name = p_name;
    END IF;
    status := 2;
    SELECT count(*) INTO r_ahead FROM fencepost.waiters w
     WHERE w.name = p_name AND w.id < (SELECT m.id FROM fencepost.waiters m WHERE m.name = p_name AND m.owner = p_owner);
    RETURN;
  END IF;
  DELETE FROM fencepost.waiters w WHERE w.name = p_name AND w.owner = p_owner;
  status := 0;
  IF held THEN
    r_token := r.token; r_ttl := r.ttl_ms; r_label := r.label; r_held := fencepost.ms_between(r.granted, now);
  END IF;
END $$;

-- Restarts leases, each with a longer TTL if one is requested (0: unchanged). A single lease waits for its row; several
-- do not, so that one locked row does not end all leases. `item` is the number of a lease in the request, from 1.
--   1 renewed: token, ttl     0 not held: why     2 another session has the row locked
CREATE FUNCTION fencepost.renew(p_names text[], p_owners text[], p_ttls bigint[], p_tokens bigint[])
RETURNS TABLE (item bigint, status int, r_token bigint, r_ttl bigint, r_why text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '1400 ms' AS $$
DECLARE
  a record;
  r fencepost.locks;
BEGIN
  FOR a IN
    SELECT u.name, u.owner::uuid AS owner, u.ttl, u.token, u.at
      FROM unnest(p_names, p_owners, p_ttls, p_tokens) WITH ORDINALITY AS u (name, owner, ttl, token, at)
     ORDER BY u.name COLLATE "C", u.at
  LOOP
    item := a.at; r_why := NULL;
    IF cardinality(p_names) > 1 THEN
      PERFORM FROM fencepost.locks l WHERE l.name = a.name FOR UPDATE SKIP LOCKED;
      IF NOT FOUND AND EXISTS (SELECT FROM fencepost.locks l WHERE l.name = a.name) THEN
        status := 2;
        RETURN NEXT;
        CONTINUE;
      END IF;
    END IF;
    UPDATE fencepost.locks l
       SET ttl_ms = greatest(a.ttl, l.ttl_ms),
           expires = clock_timestamp() + greatest(a.ttl, l.ttl_ms) * interval '1 ms'
     WHERE l.name = a.name AND l.owner = a.owner AND l.expires > clock_timestamp()
       AND (a.token = 0 OR l.token = a.token)
    RETURNING l.token, l.ttl_ms INTO r_token, r_ttl;
    status := CASE WHEN FOUND THEN 1 ELSE 0 END;
    IF status = 0 THEN
      SELECT * INTO r FROM fencepost.locks l WHERE l.name = a.name;
      r_why := fencepost.why_not(r, a.owner, clock_timestamp());
    END IF;
    RETURN NEXT;
  END LOOP;
END $$;

-- Ends what the owner has: the lock, or its position. If the owner has nothing, its acquire may still arrive, because
-- this release overtook it: the owner is withdrawn for `p_remember` ms, and such an acquire is refused. `p_unanswered`
-- says that one may arrive in any case. If it hands a grant over to a waiter, that does not wait for the disk: the grant
-- that follows is synced, and the release with it. But a crash before that undoes the release, so the caller then calls `is_released`.
--   1 released: whether it is yet to be synced     0 not held: why
CREATE FUNCTION fencepost.release(
  p_name text, p_owner uuid, p_remember bigint, p_unanswered boolean, OUT status int, OUT r_why text,
  OUT r_unsynced boolean)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '1400 ms' AS $$
DECLARE
  r fencepost.locks;
  now timestamptz;
  held boolean;
  others boolean;
  waited boolean;
BEGIN
  status := 1; r_unsynced := false;
  IF NOT p_unanswered THEN
    UPDATE fencepost.locks l SET owner = NULL, expires = clock_timestamp()
     WHERE l.name = p_name AND l.owner = p_owner AND NOT l.slow_path AND l.expires > clock_timestamp();
    IF FOUND THEN RETURN; END IF;
  END IF;

  r := fencepost.lock_row(p_name);
  now := clock_timestamp();
  held := coalesce(r.owner = p_owner AND r.expires > now, false);
  others := coalesce(r.owner <> p_owner AND r.expires > now, false);
  DELETE FROM fencepost.waiters w WHERE w.name = p_name AND w.owner = p_owner;
  waited := FOUND;
  IF p_unanswered OR NOT (held OR waited) THEN
    INSERT INTO fencepost.withdrawn AS n (name, owner, expires)
    VALUES (p_name, p_owner, now + least(greatest(p_remember, 0), 60000) * interval '1 ms')
    ON CONFLICT (name, owner) DO UPDATE SET expires = excluded.expires;
  END IF;
  IF NOT others THEN
    r_unsynced := fencepost.wake(p_name, now);
  END IF;
  -- Only the end of a grant: `is_released` would not notice that a withdrawn owner was forgotten.
  r_unsynced := r_unsynced AND held AND NOT p_unanswered AND current_setting('synchronous_commit') <> 'off';
  IF r_unsynced THEN
    PERFORM set_config('synchronous_commit', 'off', true);
  END IF;
  UPDATE fencepost.locks l
     SET owner = CASE WHEN others THEN l.owner END,
         expires = CASE WHEN held THEN now ELSE l.expires END,
         slow_path = fencepost.needs_slow_path(p_name, now)
   WHERE l.name = p_name;
  IF NOT (held OR waited) THEN
    status := 0; r_why := fencepost.why_not(r, p_owner, now);
  END IF;
END $$;

-- Whether the owner's release is on disk, now that this is committed. False if a crash has undone it.
CREATE FUNCTION fencepost.is_released(p_name text, p_owner uuid) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  -- Only a transaction that writes something waits for the disk.
  PERFORM pg_logical_emit_message(true, 'fencepost', '');
  RETURN NOT EXISTS (SELECT FROM fencepost.locks l WHERE l.name = p_name AND l.owner = p_owner);
END $$;

-- Ends the grant that has this token, and draws a token above it.
--   1 broken: floor, label     0 there is no such grant     5 it was broken before: this was sent twice
CREATE FUNCTION fencepost.break_lock(p_name text, p_token bigint, OUT status int, OUT r_floor bigint, OUT r_label text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '1400 ms' AS $$
DECLARE
  r fencepost.locks;
  now timestamptz;
BEGIN
  status := 0;
  SELECT * INTO r FROM fencepost.locks l WHERE l.name = p_name FOR UPDATE;
  IF NOT FOUND THEN RETURN; END IF;
  now := clock_timestamp();
  r_label := r.label;
  IF r.owner IS NULL OR r.expires <= now OR r.token <> p_token THEN
    IF r.broken_token = p_token THEN status := 5; END IF;
    RETURN;
  END IF;
  status := 1; r_floor := nextval('fencepost.tokens');
  UPDATE fencepost.locks l
     SET owner = NULL, expires = now, broken = r.owner, broken_token = r.token WHERE l.name = p_name;
  PERFORM fencepost.wake(p_name, now);
END $$;

-- The holder of a lock, and its waiters: at most `p_shown` of them by label.
CREATE FUNCTION fencepost.inspect(
  p_name text, p_shown int, OUT r_token bigint, OUT r_ttl bigint, OUT r_held bigint, OUT r_left bigint,
  OUT r_label text, OUT r_waiting bigint, OUT r_waited bigint[], OUT r_waiters text[])
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  now timestamptz := clock_timestamp();
BEGIN
  SELECT l.token, l.ttl_ms, fencepost.ms_between(l.granted, now), fencepost.ms_between(now, l.expires), l.label
    INTO r_token, r_ttl, r_held, r_left, r_label
    FROM fencepost.locks l WHERE l.name = p_name AND l.owner IS NOT NULL AND l.expires > now;
  SELECT count(*), array_agg(fencepost.ms_between(w.since, now) ORDER BY w.id) FILTER (WHERE w.nth <= p_shown),
         array_agg(w.label ORDER BY w.id) FILTER (WHERE w.nth <= p_shown)
    INTO r_waiting, r_waited, r_waiters
    FROM (SELECT v.*, row_number() OVER (ORDER BY v.id) AS nth FROM fencepost.waiters v
           WHERE v.name = p_name AND v.expires > now AND v.expires <= now + fencepost.position_ttl()) w;
END $$;

-- The locks that are held or have waiters, whose names have this prefix and come after this name: the first `p_most` of them.
CREATE FUNCTION fencepost.list(p_prefix text, p_after text, p_most bigint)
RETURNS TABLE (r_name text, r_token bigint, r_ttl bigint, r_held bigint, r_left bigint, r_label text, r_waiting bigint)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  now timestamptz := clock_timestamp();
BEGIN
  RETURN QUERY
  SELECT coalesce(l.name, w.name), l.token, l.ttl_ms, fencepost.ms_between(l.granted, now),
         fencepost.ms_between(now, l.expires), l.label, coalesce(w.waiting, 0)
    FROM (SELECT * FROM fencepost.locks
           WHERE owner IS NOT NULL AND expires > now AND name > p_after AND starts_with(name, p_prefix)) l
    FULL JOIN (SELECT v.name, count(*) AS waiting FROM fencepost.waiters v
                WHERE v.expires > now AND v.expires <= now + fencepost.position_ttl()
                  AND v.name > p_after AND starts_with(v.name, p_prefix) GROUP BY v.name) w
      ON l.name = w.name
   ORDER BY 1 LIMIT p_most;
END $$;

-- Removes the rows of locks that ended longer than `p_retention` ms ago, some at a time, and other expired rows. Tokens
-- need no row: the sequence continues. Rows that another session has locked are skipped.
CREATE FUNCTION fencepost.gc_locks(p_retention bigint) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  old timestamptz := clock_timestamp() - greatest(p_retention, 0) * interval '1 ms';
  gone bigint;
BEGIN
  PERFORM set_config('synchronous_commit', 'off', true);
  DELETE FROM fencepost.withdrawn n USING (
    SELECT o.name, o.owner FROM fencepost.withdrawn o WHERE o.expires < clock_timestamp() FOR UPDATE SKIP LOCKED LIMIT 1000) o
   WHERE n.name = o.name AND n.owner = o.owner;
  DELETE FROM fencepost.waiters w USING (
    SELECT o.name, o.id FROM fencepost.waiters o WHERE o.expires < old FOR UPDATE SKIP LOCKED LIMIT 1000) o
   WHERE w.name = o.name AND w.id = o.id;
  DELETE FROM fencepost.locks l USING (
    SELECT o.name FROM fencepost.locks o
     WHERE o.expires < old
       AND NOT EXISTS (SELECT FROM fencepost.waiters w WHERE w.name = o.name)
       AND NOT EXISTS (SELECT FROM fencepost.withdrawn n WHERE n.name = o.name)
     FOR UPDATE SKIP LOCKED LIMIT 1000) o
   WHERE l.name = o.name;
  GET DIAGNOSTICS gone = ROW_COUNT;
  RETURN gone;
END $$;

REVOKE ALL ON FUNCTION
  fencepost.position_ttl, fencepost.ms_between, fencepost.first_waiter, fencepost.wake, fencepost.needs_slow_path,
  fencepost.lock_row, fencepost.check_request, fencepost.why_not, fencepost.acquire, fencepost.renew, fencepost.release,
  fencepost.is_released, fencepost.break_lock, fencepost.inspect, fencepost.list, fencepost.gc_locks
FROM PUBLIC;
