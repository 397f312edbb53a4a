-- Version 2 of the component "locks": what a leader says of itself, and records of what was done.
--
--   locks.value        what the holder says of itself, said under the token `value_token`. Under another token it
--                      counts for nothing, so whoever takes the lock next need not clear it.
--   records            what is running (state 0), done (1) or failed (2) under a name, by the token of the last
--                      runner, until `ends`, by the server's clock. `result` is what it gave, or the message.
--   store              one row: which store this is, so that no record is settled in another by mistake
--
-- Nothing of version 1 is changed: clients that know only that go on.
--
-- What must hold of a record: it turns done or failed only where it is running with the caller's own token. Each step
-- decides under the lock of the record's row, on the row as it is then: an INSERT ... ON CONFLICT and a SELECT ... FOR
-- UPDATE wait for whoever has it, and read it again. (Under REPEATABLE READ and above the server refuses instead.) So
-- does `finish` in a transaction of the caller's: until that ends, nobody else claims or settles the record.

ALTER TABLE fencepost.locks ADD COLUMN value bytea, ADD COLUMN value_token bigint;

CREATE TABLE fencepost.records (
  name text COLLATE "C" PRIMARY KEY,
  token bigint NOT NULL,
  since timestamptz NOT NULL,
  ends timestamptz NOT NULL,
  state int NOT NULL CHECK (state IN (0, 1, 2)),
  label text NOT NULL,
  result bytea NOT NULL
);
CREATE INDEX records_by_end ON fencepost.records (ends);

CREATE TABLE fencepost.store (one boolean PRIMARY KEY DEFAULT true CHECK (one), id uuid NOT NULL);
INSERT INTO fencepost.store (id) VALUES (gen_random_uuid());

-- What the holder says that has this token.
CREATE FUNCTION fencepost.value_of(p_name text, p_token bigint) RETURNS bytea
LANGUAGE sql STABLE STRICT SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT l.value FROM fencepost.locks l WHERE l.name = p_name AND l.token = p_token AND l.value_token = p_token
$$;

-- Refuses a value that no client of ours sends.
CREATE FUNCTION fencepost.check_value(p_value bytea) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF octet_length(p_value) > 4096 THEN
    RAISE EXCEPTION 'the value has % bytes: use at most 4096', octet_length(p_value) USING ERRCODE = '22023';
  END IF;
END $$;

-- `acquire`, by a candidate that says something of itself.
CREATE FUNCTION fencepost.campaign(
  p_name text, p_owner uuid, p_ttl bigint, p_label text, p_channel text, p_value bytea,
  OUT status int, OUT r_token bigint, OUT r_ttl bigint, OUT r_left bigint, OUT r_ahead bigint,
  OUT r_held bigint, OUT r_label text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '1400 ms' AS $$
BEGIN
  PERFORM fencepost.check_value(p_value);
  SELECT a.* INTO status, r_token, r_ttl, r_left, r_ahead, r_held, r_label
    FROM fencepost.acquire(p_name, p_owner, p_ttl, p_label, p_channel) a;
  IF status = 1 THEN
    -- Asked twice, it leaves what may have been said since.
    UPDATE fencepost.locks l SET value = p_value, value_token = r_token
     WHERE l.name = p_name AND l.value_token IS DISTINCT FROM r_token;
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
      PERFORM fencepost.check_value(p_values[place]);
      -- Its row is locked since it was renewed.
      UPDATE fencepost.locks l SET value = p_values[place], value_token = r_token WHERE l.name = p_names[place];
    END IF;
    RETURN NEXT;
  END LOOP;
END $$;

-- Refuses a record that no client of ours writes.
CREATE FUNCTION fencepost.check_record(p_name text, p_token bigint, p_label text, p_keep bigint, p_result bytea)
RETURNS void LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF (octet_length(p_name) BETWEEN 1 AND 512 AND octet_length(p_label) BETWEEN 1 AND 256
      AND p_name || p_label !~ E'[\\u0001-\\u001f\\u007f-\\u009f]'
      AND p_token BETWEEN 1 AND 9007199254740991
      AND p_keep BETWEEN 1 AND 640000000000
      AND octet_length(p_result) <= 65536) IS NOT TRUE THEN
    RAISE EXCEPTION 'this is no record: name %, token %, label %, kept for % ms, % bytes',
      to_json(p_name), p_token, to_json(p_label), p_keep, octet_length(p_result) USING ERRCODE = '22023';
  END IF;
END $$;

-- Removes some records whose time is over, and says how many. Those that somebody is busy with are left alone.
CREATE FUNCTION fencepost.tidy_records(p_at_most int) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  gone bigint;
BEGIN
  DELETE FROM fencepost.records r USING (
    SELECT o.name FROM fencepost.records o WHERE o.ends <= clock_timestamp()
     ORDER BY o.ends LIMIT least(greatest(p_at_most, 0), 1000) FOR UPDATE SKIP LOCKED) o
   WHERE r.name = o.name AND r.ends <= clock_timestamp();
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
          state = 0, label = p_label, result = ''
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
-- `p_older`, over anything whose token is not above this one. `p_store` is the store that is meant, if any may be.
-- It may be called in a transaction of the caller's own.
--   1 settled     0 it is not the caller's to settle     4 this is another store
CREATE FUNCTION fencepost.finish(
  p_name text, p_token bigint, p_label text, p_state int, p_result bytea, p_keep bigint, p_older boolean,
  p_store text, OUT status int)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '1400 ms' AS $$
DECLARE
  r fencepost.records;
  now timestamptz;
  there boolean;
BEGIN
  PERFORM fencepost.check_record(p_name, p_token, p_label, p_keep, p_result);
  IF p_store IS NOT NULL AND NOT EXISTS (SELECT FROM fencepost.store s WHERE s.id::text = p_store) THEN
    status := 4;
    RETURN;
  END IF;
  -- Not in a transaction that is the caller's: others would wait for the end of it.
  IF p_store IS NULL THEN PERFORM fencepost.tidy_records(4); END IF;
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
           result = p_result
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
  fencepost.value_of, fencepost.check_value, fencepost.campaign, fencepost.proclaim, fencepost.check_record,
  fencepost.tidy_records, fencepost.claim, fencepost.finish, fencepost.look_up, fencepost.list_records, fencepost.forget
FROM PUBLIC;

-- Whoever may take a lock may lead, and see who does. Records are another matter: they are given one by one.
DO $$
DECLARE
  role text;
BEGIN
  FOR role IN
    SELECT DISTINCT pg_get_userbyid(a.grantee)::text FROM pg_proc p, aclexplode(p.proacl) a
     WHERE p.oid = 'fencepost.acquire(text, uuid, bigint, text, text)'::regprocedure
       AND a.privilege_type = 'EXECUTE' AND a.grantee <> 0 AND a.grantee <> p.proowner
  LOOP
    EXECUTE format('GRANT EXECUTE ON FUNCTION fencepost.value_of, fencepost.campaign, fencepost.proclaim TO %I', role);
  END LOOP;
END $$;
