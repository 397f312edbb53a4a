-- The component "records", version 2: what candidates publish, and the records of `once`. docs/layouts/postgres.md is
-- the same for users.
--
--   candidate_values  what the holder of a lock publishes, under its token. A row counts only while the lock is held
--             under that token, so the next holder need not clear it. Such rows are removed from time to time.
--   records   what is running (state 0), done (1) or failed (2) under a name, by the token of the last runner, until
--             `expires`, by the server's clock. `result` is the result, or the message. `finished_in` is the caller's
--             own transaction that finished it, if it was one.
--   store     one row: the id of this store, so that no record is finished in another one by mistake
--
-- It needs the component "locks" and does not change it: clients that only lock do not need this one.
--
-- What must hold: a record turns done or failed only if it is running with the caller's own token. Each step decides
-- under the lock of the record's row, on the row as it is then: an INSERT ... ON CONFLICT and a SELECT ... FOR UPDATE
-- wait for the session that has it, and read it again. (Under REPEATABLE READ and above the server refuses instead.) So
-- does `finish_own`, in the caller's transaction: until that ends, nobody else claims or finishes the record.
--
-- Callers need not prove that a token is their own: roles that may call these functions trust each other. But none can
-- use a token that was not issued yet, which would lock others out permanently.

CREATE TABLE fencepost.candidate_values (
  name text COLLATE "C" PRIMARY KEY,
  token bigint NOT NULL,
  value bytea NOT NULL
);

CREATE TABLE fencepost.records (
  name text COLLATE "C" PRIMARY KEY,
  token bigint NOT NULL,
  since timestamptz NOT NULL,
  expires timestamptz NOT NULL,
  state int NOT NULL CHECK (state IN (0, 1, 2)),
  label text NOT NULL,
  result bytea NOT NULL,
  finished_in xid8
);
CREATE INDEX records_by_expiry ON fencepost.records (expires);

CREATE TABLE fencepost.store (one boolean PRIMARY KEY DEFAULT true CHECK (one), id uuid NOT NULL);
INSERT INTO fencepost.store (id) VALUES (gen_random_uuid());

-- What the current holders publish: that of this name, or all.
CREATE FUNCTION fencepost.current_values(p_name text)
RETURNS TABLE (r_name text, r_token bigint, r_value bytea)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  now timestamptz := clock_timestamp();
BEGIN
  IF p_name IS NULL THEN
    RETURN QUERY
    SELECT v.name, v.token, v.value FROM fencepost.candidate_values v
      JOIN fencepost.locks l ON l.name = v.name AND l.token = v.token
     WHERE l.owner IS NOT NULL AND l.expires > now;
  ELSE
    RETURN QUERY
    SELECT v.name, v.token, v.value FROM fencepost.candidate_values v
      JOIN fencepost.locks l ON l.name = v.name AND l.token = v.token
     WHERE v.name = p_name AND l.owner IS NOT NULL AND l.expires > now;
  END IF;
END $$;

-- Writes what the holder of a lock publishes; the caller has locked its row. `p_replace` replaces an earlier value of
-- this holder; without it that value stays, since it may be newer than this one.
CREATE FUNCTION fencepost.publish(p_name text, p_token bigint, p_value bytea, p_replace boolean) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF octet_length(p_value) > 4096 THEN
    RAISE EXCEPTION 'the value has % bytes: use at most 4096', octet_length(p_value) USING ERRCODE = '22023';
  END IF;
  INSERT INTO fencepost.candidate_values AS v (name, token, value) VALUES (p_name, p_token, p_value)
  ON CONFLICT (name) DO UPDATE SET token = p_token, value = p_value WHERE p_replace OR v.token <> p_token;
END $$;

-- `acquire`, by a candidate that publishes a value. If the lock is held, returns the holder's value.
CREATE FUNCTION fencepost.campaign(
  p_name text, p_owner uuid, p_ttl bigint, p_label text, p_channel text, p_value bytea,
  OUT status int, OUT r_token bigint, OUT r_ttl bigint, OUT r_left bigint, OUT r_ahead bigint,
  OUT r_held bigint, OUT r_label text, OUT r_value bytea)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '1400 ms' AS $$
BEGIN
  SELECT a.* INTO status, r_token, r_ttl, r_left, r_ahead, r_held, r_label
    FROM fencepost.acquire(p_name, p_owner, p_ttl, p_label, p_channel) a;
  IF status = 1 THEN
    PERFORM fencepost.publish(p_name, r_token, p_value, false);
  ELSIF status = 0 THEN
    SELECT v.value INTO r_value FROM fencepost.candidate_values v WHERE v.name = p_name AND v.token = r_token;
  END IF;
END $$;

-- `renew`, with what each holder publishes from now on; null leaves it unchanged.
CREATE FUNCTION fencepost.proclaim(
  p_names text[], p_owners text[], p_ttls bigint[], p_tokens bigint[], p_values bytea[])
RETURNS TABLE (item bigint, status int, r_token bigint, r_ttl bigint, r_why text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '1400 ms' AS $$
BEGIN
  FOR item, status, r_token, r_ttl, r_why IN
    SELECT a.* FROM fencepost.renew(p_names, p_owners, p_ttls, p_tokens) a
  LOOP
    IF status = 1 AND p_values[item] IS NOT NULL THEN
      -- The renewal has locked the lock's row.
      PERFORM fencepost.publish(p_names[item], r_token, p_values[item], true);
    END IF;
    RETURN NEXT;
  END LOOP;
END $$;

-- Removes the values of grants that have ended, and returns the number of rows.
CREATE FUNCTION fencepost.gc_candidate_values() RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  stale text;
  now timestamptz := clock_timestamp();
  gone bigint := 0;
BEGIN
  FOR stale IN
    SELECT v.name FROM fencepost.candidate_values v
     WHERE NOT EXISTS (SELECT FROM fencepost.locks l
                        WHERE l.name = v.name AND l.token = v.token AND l.owner IS NOT NULL AND l.expires > now)
     LIMIT 1000 FOR UPDATE OF v SKIP LOCKED
  LOOP
    -- Checked again, now that the row is locked: another client may lead by now.
    DELETE FROM fencepost.candidate_values v
     WHERE v.name = stale
       AND NOT EXISTS (SELECT FROM fencepost.locks l
                        WHERE l.name = v.name AND l.token = v.token AND l.owner IS NOT NULL AND l.expires > now);
    IF FOUND THEN gone := gone + 1; END IF;
  END LOOP;
  RETURN gone;
END $$;

-- Refuses values that our clients never send, and a token that was never issued.
CREATE FUNCTION fencepost.check_record(p_name text, p_token bigint, p_label text, p_retention bigint, p_result bytea)
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF (octet_length(p_name) BETWEEN 1 AND 512 AND octet_length(p_label) BETWEEN 1 AND 256
      AND p_name || p_label !~ E'[\\u0001-\\u001f\\u007f-\\u009f]'
      AND p_token BETWEEN 1 AND 9007199254740991
      AND p_retention BETWEEN 1 AND 640000000000
      AND octet_length(p_result) <= 65536) IS NOT TRUE THEN
    RAISE EXCEPTION 'not a valid record: name %, token %, label %, kept for % ms, % bytes',
      to_json(p_name), p_token, to_json(p_label), p_retention, octet_length(p_result) USING ERRCODE = '22023';
  END IF;
  IF NOT EXISTS (SELECT FROM fencepost.tokens t WHERE t.is_called AND t.last_value >= p_token) THEN
    RAISE EXCEPTION 'token % was not issued by this database: pass the token of the grant', p_token
      USING ERRCODE = '22023';
  END IF;
END $$;

-- Removes some expired records, and returns how many. Skips those that another session has locked.
CREATE FUNCTION fencepost.gc_records(p_at_most int) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  -- A variable, and not a function call that might return another value for each row: otherwise the index is not used.
  now timestamptz := clock_timestamp();
  gone bigint;
BEGIN
  DELETE FROM fencepost.records r USING (
    SELECT o.name FROM fencepost.records o WHERE o.expires <= now
     ORDER BY o.expires LIMIT least(greatest(p_at_most, 0), 1000) FOR UPDATE SKIP LOCKED) o
   WHERE r.name = o.name;
  GET DIAGNOSTICS gone = ROW_COUNT;
  RETURN gone;
END $$;

-- Makes the record running under this token, unless it is finished or a higher token has it.
--   1 it is the caller's     0 it is not: state, token, label, result, since and left (ms) of the record
-- With either, the id of this store.
CREATE FUNCTION fencepost.claim(
  p_name text, p_token bigint, p_label text, p_retention bigint,
  OUT status int, OUT r_name text, OUT r_state int, OUT r_token bigint, OUT r_label text, OUT r_result bytea,
  OUT r_since bigint, OUT r_left bigint, OUT r_store text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '1400 ms' AS $$
DECLARE
  r fencepost.records;
  now timestamptz;
BEGIN
  PERFORM fencepost.check_record(p_name, p_token, p_label, p_retention, '');
  SELECT s.id::text INTO r_store FROM fencepost.store s;
  LOOP
    INSERT INTO fencepost.records AS c (name, token, since, expires, state, label, result)
    VALUES (p_name, p_token, clock_timestamp(), clock_timestamp() + p_retention * interval '1 ms', 0, p_label, '')
    ON CONFLICT (name) DO UPDATE
      SET token = p_token, since = clock_timestamp(), expires = clock_timestamp() + p_retention * interval '1 ms',
          state = 0, label = p_label, result = '', finished_in = NULL
    WHERE c.expires <= clock_timestamp() OR (c.state = 0 AND c.token <= p_token);
    IF FOUND THEN
      status := 1;
      -- Last: removes more than a step can add, so that expired rows do not accumulate.
      PERFORM fencepost.gc_records(4);
      RETURN;
    END IF;
    SELECT * INTO r FROM fencepost.records c WHERE c.name = p_name;
    now := clock_timestamp();
    IF r.expires > now AND (r.state <> 0 OR r.token > p_token) THEN
      status := 0; r_name := r.name; r_state := r.state; r_token := r.token; r_label := r.label; r_result := r.result;
      r_since := fencepost.ms_between(r.since, now); r_left := fencepost.ms_between(now, r.expires);
      RETURN;
    END IF;
    -- The record was removed meanwhile, or has expired.
  END LOOP;
END $$;

-- Finishes a record: done (1) or failed (2), or abandoned (0), which removes it. Replaces the caller's own claim, or, if
-- `p_older`, any record whose token is not above this one.
--   1 finished     0 it is not the caller's to finish
CREATE FUNCTION fencepost.finish(
  p_name text, p_token bigint, p_label text, p_state int, p_result bytea, p_retention bigint, p_older boolean,
  OUT status int)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '1400 ms' AS $$
DECLARE
  r fencepost.records;
  now timestamptz;
  there boolean;
BEGIN
  PERFORM fencepost.check_record(p_name, p_token, p_label, p_retention, p_result);
  PERFORM fencepost.gc_records(4);
  LOOP
    SELECT * INTO r FROM fencepost.records c WHERE c.name = p_name FOR UPDATE;
    EXIT WHEN FOUND OR NOT p_older OR p_state = 0;
    INSERT INTO fencepost.records (name, token, since, expires, state, label, result)
    VALUES (p_name, p_token, clock_timestamp(), clock_timestamp() + p_retention * interval '1 ms', p_state, p_label, p_result)
    ON CONFLICT DO NOTHING;
    IF FOUND THEN
      status := 1;
      RETURN;
    END IF;
  END LOOP;
  now := clock_timestamp();
  there := coalesce(r.expires > now, false);
  IF p_older THEN
    status := CASE WHEN there AND r.token > p_token THEN 0 ELSE 1 END;
  ELSIF NOT there THEN
    status := CASE WHEN p_state = 0 THEN 1 ELSE 0 END;
    RETURN;
  ELSE
    status := CASE WHEN r.token = p_token THEN 1 ELSE 0 END;
    -- Finished by this token already: the reply to that was lost.
    IF r.state <> 0 THEN RETURN; END IF;
  END IF;
  IF status = 0 THEN RETURN; END IF;
  IF p_state = 0 THEN
    DELETE FROM fencepost.records c WHERE c.name = p_name;
  ELSE
    UPDATE fencepost.records c
       SET token = p_token, since = now, expires = now + p_retention * interval '1 ms', state = p_state, label = p_label,
           result = p_result, finished_in = NULL
     WHERE c.name = p_name;
  END IF;
END $$;

-- Finishes the caller's own claim, done (1) or failed (2), as a part of the transaction that it is called in.
-- `p_store` is the store in which it was claimed (`r_store` of the claim). The role of that transaction needs no
-- other function. The record's row is locked until the transaction ends, so a session that freezes before its commit
-- is ended after 30 s, or sooner if its own setting is shorter.
--   1 finished     0 another client has claimed it since     4 this is another store
--   5 finished before, by this token, in a transaction that was committed     7 finished before, in this transaction
--   6 the claim does not exist: it was forgotten, it has expired, or this transaction began before it
CREATE FUNCTION fencepost.finish_own(
  p_name text, p_token bigint, p_label text, p_state int, p_result bytea, p_retention bigint, p_store text,
  OUT status int)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '1400 ms' AS $$
DECLARE
  r fencepost.records;
  now timestamptz;
  was interval := current_setting('idle_in_transaction_session_timeout')::interval;
BEGIN
  PERFORM fencepost.check_record(p_name, p_token, p_label, p_retention, p_result);
  IF (p_state IN (1, 2)) IS NOT TRUE THEN
    RAISE EXCEPTION 'a record is finished as done (1) or failed (2), not as %', p_state USING ERRCODE = '22023';
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
  status := CASE WHEN r.name IS NULL OR r.expires <= now OR r.token < p_token THEN 6
                 WHEN r.token > p_token THEN 0
                 WHEN r.state = 0 THEN 1
                 WHEN r.finished_in = pg_current_xact_id() THEN 7
                 ELSE 5 END;
  IF status = 1 THEN
    UPDATE fencepost.records c
       SET since = now, expires = now + p_retention * interval '1 ms', state = p_state, label = p_label, result = p_result,
           finished_in = pg_current_xact_id()
     WHERE c.name = p_name;
  END IF;
END $$;

-- The record under a name, unless it has expired.
CREATE FUNCTION fencepost.look_up(p_name text)
RETURNS TABLE (r_name text, r_state int, r_token bigint, r_label text, r_result bytea, r_since bigint, r_left bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT r.name, r.state, r.token, r.label, r.result, fencepost.ms_between(r.since, clock_timestamp()),
         fencepost.ms_between(clock_timestamp(), r.expires)
    FROM fencepost.records r WHERE r.name = p_name AND r.expires > clock_timestamp()
$$;

-- All records whose names have this prefix, without their results.
CREATE FUNCTION fencepost.list_records(p_prefix text)
RETURNS TABLE (r_name text, r_state int, r_token bigint, r_label text, r_result bytea, r_since bigint, r_left bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT r.name, r.state, r.token, r.label, ''::bytea, fencepost.ms_between(r.since, clock_timestamp()),
         fencepost.ms_between(clock_timestamp(), r.expires)
    FROM fencepost.records r
   WHERE r.name >= p_prefix COLLATE "C" AND starts_with(r.name, p_prefix) AND r.expires > clock_timestamp()
   ORDER BY r.name
$$;

-- Removes the record under a name if it has this token.
CREATE FUNCTION fencepost.forget(p_name text, p_token bigint) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '1400 ms' AS $$
BEGIN
  DELETE FROM fencepost.records r WHERE r.name = p_name AND r.token = p_token AND r.expires > clock_timestamp();
  RETURN FOUND;
END $$;

REVOKE ALL ON FUNCTION
  fencepost.current_values, fencepost.publish, fencepost.campaign, fencepost.proclaim, fencepost.gc_candidate_values,
  fencepost.check_record, fencepost.gc_records, fencepost.claim, fencepost.finish, fencepost.finish_own,
  fencepost.look_up, fencepost.list_records, fencepost.forget
FROM PUBLIC;

-- A role that may take a lock may lead, and a role that may see one may see who leads. Rights to records are granted
-- explicitly.
DO $$
DECLARE
  given record;
BEGIN
  FOR given IN
    SELECT DISTINCT t.gives, CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END AS role
      FROM (VALUES ('acquire', 'current_values'), ('inspect', 'current_values'), ('list', 'current_values'),
                   ('acquire', 'campaign'), ('renew', 'proclaim'), ('gc_locks', 'gc_candidate_values')) t (has, gives)
      JOIN pg_proc p ON p.pronamespace = 'fencepost'::regnamespace AND p.proname = t.has
     CROSS JOIN aclexplode(p.proacl) a
     WHERE a.privilege_type = 'EXECUTE' AND a.grantee <> p.proowner
  LOOP
    EXECUTE format('GRANT EXECUTE ON FUNCTION fencepost.%I TO %s', given.gives, given.role);
  END LOOP;
END $$;
