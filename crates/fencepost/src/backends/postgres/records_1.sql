-- Version 1 of the component "records": what leaders say of themselves, and records of what was done.
--
--   leaders   what the holder of a lock says of itself, under its token. A row counts only while the lock is held under
--             that token, so whoever takes the lock next need not clear it. Such rows are removed now and then.
--   records   what is running (state 0), done (1) or failed (2) under a name, by the token of the last runner, until
--             `ends`, by the server's clock. `result` is what it gave, or the message. `marked_in` is the transaction
--             of the caller's own that settled it, if it was one.
--   store     one row: which store this is, so that no record is settled in another by mistake
--
-- It stands on the component "locks" and changes nothing of it: clients that know only that go on, and those that need
-- no more need not have this one.
--
-- What must hold of a record: it turns done or failed only where it is running with the caller's own token. Each step
-- decides under the lock of the record's row, on the row as it is then: an INSERT ... ON CONFLICT and a SELECT ... FOR
-- UPDATE wait for whoever has it, and read it again. (Under REPEATABLE READ and above the server refuses instead.) So
-- does `finish_own`, in a transaction of the caller's: until that ends, nobody else claims or settles the record.
--
-- Nobody is asked whether the token is its own: roles that may call these functions trust each other. But none can use
-- a token that was not handed out yet, and so lock others out for good.

CREATE TABLE fencepost.leaders (
  name text COLLATE "C" PRIMARY KEY,
  token bigint NOT NULL,
  value bytea NOT NULL
);

CREATE TABLE fencepost.records (
  name text COLLATE "C" PRIMARY KEY,
  token bigint NOT NULL,
  since timestamptz NOT NULL,
  ends timestamptz NOT NULL,
  state int NOT NULL CHECK (state IN (0, 1, 2)),
  label text NOT NULL,
  result bytea NOT NULL,
  marked_in xid8
);
CREATE INDEX records_by_end ON fencepost.records (ends);

CREATE TABLE fencepost.store (one boolean PRIMARY KEY DEFAULT true CHECK (one), id uuid NOT NULL);
INSERT INTO fencepost.store (id) VALUES (gen_random_uuid());

-- What those say who hold a lock now: that of this name, or all.
CREATE FUNCTION fencepost.leaders_now(p_name text)
RETURNS TABLE (r_name text, r_token bigint, r_value bytea)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  now timestamptz := clock_timestamp();
BEGIN
  IF p_name IS NULL THEN
    RETURN QUERY
    SELECT v.name, v.token, v.value FROM fencepost.leaders v
      JOIN fencepost.locks l ON l.name = v.name AND l.token = v.token
     WHERE l.owner IS NOT NULL AND l.expires > now;
  ELSE
    RETURN QUERY
    SELECT v.name, v.token, v.value FROM fencepost.leaders v
      JOIN fencepost.locks l ON l.name = v.name AND l.token = v.token
     WHERE v.name = p_name AND l.owner IS NOT NULL AND l.expires > now;
  END IF;
END $$;

-- Writes what the holder of a lock says, whose row the caller has locked. `p_again` replaces what this holder said
-- before; without it that is left, since it may have been said after what is written here was asked for.
CREATE FUNCTION fencepost.say(p_name text, p_token bigint, p_value bytea, p_again boolean) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF octet_length(p_value) > 4096 THEN
    RAISE EXCEPTION 'the value has % bytes: use at most 4096', octet_length(p_value) USING ERRCODE = '22023';
  END IF;
  INSERT INTO fencepost.leaders AS v (name, token, value) VALUES (p_name, p_token, p_value)
  ON CONFLICT (name) DO UPDATE SET token = p_token, value = p_value WHERE p_again OR v.token <> p_token;
END $$;

-- `acquire`, by a candidate that says something of itself. Of a holder it tells what that says.
CREATE FUNCTION fencepost.campaign(
  p_name text, p_owner uuid, p_ttl bigint, p_label text, p_channel text, p_value bytea,
  OUT status int, OUT r_token bigint, OUT r_ttl bigint, OUT r_left bigint, OUT r_ahead bigint,
  OUT r_held bigint, OUT r_label text, OUT r_value bytea)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '1400 ms' AS $$
BEGIN
  SELECT a.* INTO status, r_token, r_ttl, r_left, r_ahead, r_held, r_label
    FROM fencepost.acquire(p_name, p_owner, p_ttl, p_label, p_channel) a;
  IF status = 1 THEN
    PERFORM fencepost.say(p_name, r_token, p_value, false);
  ELSIF status = 0 THEN
    SELECT v.value INTO r_value FROM fencepost.leaders v WHERE v.name = p_name AND v.token = r_token;
  END IF;
END $$;

-- `renew`, with what each holder says of itself from now on; null leaves that as it is.
CREATE FUNCTION fencepost.proclaim(
  p_names text[], p_owners text[], p_ttls bigint[], p_tokens bigint[], p_values bytea[])
RETURNS TABLE (place bigint, status int, r_token bigint, r_ttl bigint, r_why text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '1400 ms' AS $$
BEGIN
  FOR place, status, r_token, r_ttl, r_why IN
    SELECT a.* FROM fencepost.renew(p_names, p_owners, p_ttls, p_tokens) a
  LOOP
    IF status = 1 AND p_values[place] IS NOT NULL THEN
      -- The lock's row is ours since it was renewed.
      PERFORM fencepost.say(p_names[place], r_token, p_values[place], true);
    END IF;
    RETURN NEXT;
  END LOOP;
END $$;

-- Removes what was said by those who do not hold their lock any more, and says how many rows that were.
CREATE FUNCTION fencepost.tidy_leaders() RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  stale text;
  now timestamptz := clock_timestamp();
  gone bigint := 0;
BEGIN
  FOR stale IN
    SELECT v.name FROM fencepost.leaders v
     WHERE NOT EXISTS (SELECT FROM fencepost.locks l
                        WHERE l.name = v.name AND l.token = v.token AND l.owner IS NOT NULL AND l.expires > now)
     LIMIT 1000 FOR UPDATE OF v SKIP LOCKED
  LOOP
    -- Seen once more, now that the row is ours: somebody may have come to lead since the first look.
    DELETE FROM fencepost.leaders v
     WHERE v.name = stale
       AND NOT EXISTS (SELECT FROM fencepost.locks l
                        WHERE l.name = v.name AND l.token = v.token AND l.owner IS NOT NULL AND l.expires > now);
    IF FOUND THEN gone := gone + 1; END IF;
  END LOOP;
  RETURN gone;
END $$;

-- Refuses a record that no client of ours writes, and a token that was never handed out.
CREATE FUNCTION fencepost.check_record(p_name text, p_token bigint, p_label text, p_keep bigint, p_result bytea)
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF (octet_length(p_name) BETWEEN 1 AND 512 AND octet_length(p_label) BETWEEN 1 AND 256
      AND p_name || p_label !~ E'[\\u0001-\\u001f\\u007f-\\u009f]'
      AND p_token BETWEEN 1 AND 9007199254740991
      AND p_keep BETWEEN 1 AND 640000000000
      AND octet_length(p_result) <= 65536) IS NOT TRUE THEN
    RAISE EXCEPTION 'this is no record: name %, token %, label %, kept for % ms, % bytes',
      to_json(p_name), p_token, to_json(p_label), p_keep, octet_length(p_result) USING ERRCODE = '22023';
  END IF;
  IF NOT EXISTS (SELECT FROM fencepost.tokens t WHERE t.is_called AND t.last_value >= p_token) THEN
    RAISE EXCEPTION 'token % was not handed out by this database: pass that of the grant', p_token
      USING ERRCODE = '22023';
  END IF;
END $$;

-- Removes some records whose time is over, and says how many. Those that somebody is busy with are left alone.
CREATE FUNCTION fencepost.tidy_records(p_at_most int) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  -- A value, and no call that might give another one for each row: only so the index is used.
  now timestamptz := clock_timestamp();
  gone bigint;
BEGIN
  DELETE FROM fencepost.records r USING (
    SELECT o.name FROM fencepost.records o WHERE o.ends <= now
     ORDER BY o.ends LIMIT least(greatest(p_at_most, 0), 1000) FOR UPDATE SKIP LOCKED) o
   WHERE r.name = o.name;
  GET DIAGNOSTICS gone = ROW_COUNT;
  RETURN gone;
END $$;

-- Makes the record running under this token, unless it is settled or a higher token has it.
--   1 it is the caller's     0 it is not: state, token, label, result, since and left (ms) of the record
-- With either, which store this is.
CREATE FUNCTION fencepost.claim(
  p_name text, p_token bigint, p_label text, p_keep bigint,
  OUT status int, OUT r_name text, OUT r_state int, OUT r_token bigint, OUT r_label text, OUT r_result bytea,
  OUT r_since bigint, OUT r_left bigint, OUT r_store text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '1400 ms' AS $$
DECLARE
  r fencepost.records;
  now timestamptz;
BEGIN
  PERFORM fencepost.check_record(p_name, p_token, p_label, p_keep, '');
  SELECT s.id::text INTO r_store FROM fencepost.store s;
  LOOP
    INSERT INTO fencepost.records AS c (name, token, since, ends, state, label, result)
    VALUES (p_name, p_token, clock_timestamp(), clock_timestamp() + p_keep * interval '1 ms', 0, p_label, '')
    ON CONFLICT (name) DO UPDATE
      SET token = p_token, since = clock_timestamp(), ends = clock_timestamp() + p_keep * interval '1 ms',
          state = 0, label = p_label, result = '', marked_in = NULL
    WHERE c.ends <= clock_timestamp() OR (c.state = 0 AND c.token <= p_token);
    IF FOUND THEN
      status := 1;
      -- After it: more than a step can add, so that nothing old stays.
      PERFORM fencepost.tidy_records(4);
      RETURN;
    END IF;
    SELECT * INTO r FROM fencepost.records c WHERE c.name = p_name;
    now := clock_timestamp();
    IF r.ends > now AND (r.state <> 0 OR r.token > p_token) THEN
      status := 0; r_name := r.name; r_state := r.state; r_token := r.token; r_label := r.label; r_result := r.result;
      r_since := fencepost.ms_between(r.since, now); r_left := fencepost.ms_between(now, r.ends);
      RETURN;
    END IF;
    -- It has gone meanwhile, or its time is over.
  END LOOP;
END $$;

-- Settles a record: done (1) or failed (2), or given up (0), so that it goes. Over the caller's own claim, or, if
-- `p_older`, over anything whose token is not above this one.
--   1 settled     0 it is not the caller's to settle
CREATE FUNCTION fencepost.finish(
  p_name text, p_token bigint, p_label text, p_state int, p_result bytea, p_keep bigint, p_older boolean,
  OUT status int)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '1400 ms' AS $$
DECLARE
  r fencepost.records;
  now timestamptz;
  there boolean;
BEGIN
  PERFORM fencepost.check_record(p_name, p_token, p_label, p_keep, p_result);
  PERFORM fencepost.tidy_records(4);
  LOOP
    SELECT * INTO r FROM fencepost.records c WHERE c.name = p_name FOR UPDATE;
    EXIT WHEN FOUND OR NOT p_older OR p_state = 0;
    INSERT INTO fencepost.records (name, token, since, ends, state, label, result)
    VALUES (p_name, p_token, clock_timestamp(), clock_timestamp() + p_keep * interval '1 ms', p_state, p_label, p_result)
    ON CONFLICT DO NOTHING;
    IF FOUND THEN
      status := 1;
      RETURN;
    END IF;
  END LOOP;
  now := clock_timestamp();
  there := coalesce(r.ends > now, false);
  IF p_older THEN
    status := CASE WHEN there AND r.token > p_token THEN 0 ELSE 1 END;
  ELSIF NOT there THEN
    status := CASE WHEN p_state = 0 THEN 1 ELSE 0 END;
    RETURN;
  ELSE
    status := CASE WHEN r.token = p_token THEN 1 ELSE 0 END;
    -- Settled by this token already: the answer to that got lost.
    IF r.state <> 0 THEN RETURN; END IF;
  END IF;
  IF status = 0 THEN RETURN; END IF;
  IF p_state = 0 THEN
    DELETE FROM fencepost.records c WHERE c.name = p_name;
  ELSE
    UPDATE fencepost.records c
       SET token = p_token, since = now, ends = now + p_keep * interval '1 ms', state = p_state, label = p_label,
           result = p_result, marked_in = NULL
     WHERE c.name = p_name;
  END IF;
END $$;

-- Settles the caller's own claim, done (1) or failed (2), as a part of the transaction that it is called in.
-- `p_store` is the store in which it was claimed (`r_store` of the claim). The role of that transaction needs no
-- other function. The record's row is locked until the transaction ends, so a caller that freezes before it commits
-- is ended after 30 s, or sooner if its session says so.
--   1 settled     0 somebody else has claimed it since     4 this is another store
--   5 settled before, by this token, in a transaction that was committed     7 settled before, in this transaction
--   6 the claim is not there: it was forgotten, its time is over, or this transaction began before it
CREATE FUNCTION fencepost.finish_own(
  p_name text, p_token bigint, p_label text, p_state int, p_result bytea, p_keep bigint, p_store text,
  OUT status int)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '1400 ms' AS $$
DECLARE
  r fencepost.records;
  now timestamptz;
  was interval := current_setting('idle_in_transaction_session_timeout')::interval;
BEGIN
  PERFORM fencepost.check_record(p_name, p_token, p_label, p_keep, p_result);
  IF (p_state IN (1, 2)) IS NOT TRUE THEN
    RAISE EXCEPTION 'a record is settled as done (1) or failed (2), not as %', p_state USING ERRCODE = '22023';
  END IF;
  IF NOT EXISTS (SELECT FROM fencepost.store s WHERE s.id::text = p_store) THEN
    status := 4;
    RETURN;
  END IF;
  IF was = interval '0' OR was > interval '30 s' THEN
    PERFORM set_config('idle_in_transaction_session_timeout', '30s', true);
  END IF;
  SELECT * INTO r FROM fencepost.records c WHERE c.name = p_name FOR UPDATE;
  now := clock_timestamp();
  status := CASE WHEN r.name IS NULL OR r.ends <= now OR r.token < p_token THEN 6
                 WHEN r.token > p_token THEN 0
                 WHEN r.state = 0 THEN 1
                 WHEN r.marked_in = pg_current_xact_id() THEN 7
                 ELSE 5 END;
  IF status = 1 THEN
    UPDATE fencepost.records c
       SET since = now, ends = now + p_keep * interval '1 ms', state = p_state, label = p_label, result = p_result,
           marked_in = pg_current_xact_id()
     WHERE c.name = p_name;
  END IF;
END $$;

-- The record under a name, if its time is not over.
CREATE FUNCTION fencepost.look_up(p_name text)
RETURNS TABLE (r_name text, r_state int, r_token bigint, r_label text, r_result bytea, r_since bigint, r_left bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT r.name, r.state, r.token, r.label, r.result, fencepost.ms_between(r.since, clock_timestamp()),
         fencepost.ms_between(clock_timestamp(), r.ends)
    FROM fencepost.records r WHERE r.name = p_name AND r.ends > clock_timestamp()
$$;

-- All records whose names start so, without their results.
CREATE FUNCTION fencepost.list_records(p_prefix text)
RETURNS TABLE (r_name text, r_state int, r_token bigint, r_label text, r_result bytea, r_since bigint, r_left bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT r.name, r.state, r.token, r.label, ''::bytea, fencepost.ms_between(r.since, clock_timestamp()),
         fencepost.ms_between(clock_timestamp(), r.ends)
    FROM fencepost.records r
   WHERE r.name >= p_prefix COLLATE "C" AND starts_with(r.name, p_prefix) AND r.ends > clock_timestamp()
   ORDER BY r.name
$$;

-- Removes the record under a name if it bears this token.
CREATE FUNCTION fencepost.forget(p_name text, p_token bigint) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '1400 ms' AS $$
BEGIN
  DELETE FROM fencepost.records r WHERE r.name = p_name AND r.token = p_token AND r.ends > clock_timestamp();
  RETURN FOUND;
END $$;

REVOKE ALL ON FUNCTION
  fencepost.leaders_now, fencepost.say, fencepost.campaign, fencepost.proclaim, fencepost.tidy_leaders,
  fencepost.check_record, fencepost.tidy_records, fencepost.claim, fencepost.finish, fencepost.finish_own,
  fencepost.look_up, fencepost.list_records, fencepost.forget
FROM PUBLIC;

-- Whoever may take a lock may lead, and whoever may see one may see who leads. Records are another matter: they are
-- given one by one.
DO $$
DECLARE
  given record;
BEGIN
  FOR given IN
    SELECT DISTINCT t.gives, CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END AS role
      FROM (VALUES ('acquire', 'leaders_now'), ('inspect', 'leaders_now'), ('list', 'leaders_now'),
                   ('acquire', 'campaign'), ('renew', 'proclaim'), ('tidy', 'tidy_leaders')) t (has, gives)
      JOIN pg_proc p ON p.pronamespace = 'fencepost'::regnamespace AND p.proname = t.has
     CROSS JOIN aclexplode(p.proacl) a
     WHERE a.privilege_type = 'EXECUTE' AND a.grantee <> p.proowner
  LOOP
    EXECUTE format('GRANT EXECUTE ON FUNCTION fencepost.%I TO %s', given.gives, given.role);
  END LOOP;
END $$;
