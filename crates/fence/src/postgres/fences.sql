-- Version 2 of the component "fences": lets a database refuse a stale token.
--
--   marks    a row per lock name: the highest token that has entered, and a secret, drawn when the mark is set
--   resets   a row per reset, never changed
--
-- What must hold: while a transaction that has entered with token t is open, the mark of the name is t, and what it reads
-- after `enter` includes all that was written under lower tokens. Two kinds of advisory locks give both. The server holds
-- them until the transaction ends, or is rolled back to a savepoint from before them, and that undoes a new mark as well:
--
--   (name, token)   shared: each transaction that has entered with it. Exclusive: the one that replaces this mark.
--   (name, 0)       exclusive: the one that sets or replaces the mark of the name, whatever it is.
--
-- 1. A mark is changed only under (name, 0). So the mark that this transaction has read stays until it changes it.
-- 2. A mark is changed only under the exclusive lock of its token. So the change waits for all transactions that have entered
--    with that token. The server makes a commit visible before it releases the locks: the next statement sees their work.
-- 3. A transaction has entered if it set the mark, and so holds (name, 0); or if it got the shared lock of its token, and
--    read the mark after that. By 2 nobody replaces the mark then. All holders of lower tokens had ended before it was
--    set, so a snapshot that shows the mark shows their work too.
--
-- So a holder's parallel transactions do not wait for each other. A higher token waits for those that are open, and the
-- server queues later ones behind it. `enter` reads the mark before it asks for the shared lock, too: a transaction that
-- waits for (name, 0) does not hold a shared lock that the next change may need, so transactions that enter one name, each
-- with one token, do not deadlock.
--
-- Snapshots. In READ COMMITTED each statement has a new one, within these functions too, so a read that follows a lock is newer
-- than the lock. Under REPEATABLE READ and above the transaction keeps its first one, which is older. There the row's xmax,
-- which is not subject to the snapshot, shows whether the mark has changed since. An entry leaves no trace in the row: so a
-- mark is changed only if nothing at all has been committed since the snapshot (`check_snapshot`). Otherwise it is
-- 40001, as for other conflicts at these levels, and the client retries.
--
-- A READ ONLY transaction can enter, but not change the mark (25006). A standby refuses: its marks may be old. A prepared
-- transaction keeps its locks. Nothing is kept in the session, so poolers may share it.
--
-- The trigger of a protected table learns of the entry from the setting fencepost.entered: the transaction's id, and the
-- secrets of the marks that it has entered with. It is local to the transaction, and undone with a savepoint like the locks.
-- The id makes a copy worthless in another transaction. Without the secret, a role that may write but not enter cannot
-- forge it.
--
-- The keys of the locks are hashes. Where two are equal, transactions wait without need, and the proof is the same. Others
-- can take these locks, as all advisory locks: then holders wait. Nobody can release a lock that a transaction of ours holds.
--
-- Functions that run in each transaction have no SET search_path, because it costs more than the rest of them. Their caller
-- chooses the search_path, and they run with their owner's rights: so each function, operator, type and collation in them is
-- named with its schema. Names are compared and hashed in the collation "C", whatever the caller's is.
--
-- SQLSTATEs: FP001 the token is stale; FP002 the call is wrong (no token, no name, no such table); FP003 a transaction
-- that has not entered wrote a protected table.

CREATE TABLE fencepost.marks (
  name text COLLATE "C" PRIMARY KEY,
  token bigint NOT NULL CHECK (token BETWEEN 1 AND 9007199254740991),
  secret text COLLATE "C" NOT NULL DEFAULT gen_random_uuid(),
  set_at timestamptz NOT NULL,
  set_by text NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE fencepost.resets (
  number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  name text COLLATE "C" NOT NULL,
  from_token bigint,
  to_token bigint,
  at timestamptz NOT NULL,
  by text NOT NULL,
  role text NOT NULL,
  why text NOT NULL
);

-- A time for people, in one format whatever the session's settings are.
CREATE FUNCTION fencepost.rfc3339(at timestamptz) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$ SELECT to_char($1 AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') $$;

-- Refuses a text that is not 1 to `most` bytes long, or has control characters.
CREATE FUNCTION fencepost.check_text(what text, value text, most int) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF value IS NULL OR value = '' THEN
    RAISE EXCEPTION 'the % is empty: give 1 to % bytes of text', what, most USING ERRCODE = 'FP002';
  ELSIF octet_length(value) > most THEN
    RAISE EXCEPTION 'the % "%..." has % bytes: use at most %', what, left(value, 24), octet_length(value), most
      USING ERRCODE = 'FP002';
  ELSIF value ~ E'[\\u0001-\\u001f\\u007f-\\u009f]' THEN
    RAISE EXCEPTION 'the % % contains a control character: remove it', what, to_json(value)
      USING ERRCODE = 'FP002';
  END IF;
END $$;

CREATE FUNCTION fencepost.check_token(token bigint) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF token IS NULL OR token < 1 OR token > 9007199254740991 THEN
    RAISE EXCEPTION '% is not a token: tokens are whole numbers from 1 to 9007199254740991', coalesce(token::text, 'null')
      USING ERRCODE = 'FP002', HINT = 'Pass the token of the lock that you hold.';
  END IF;
END $$;

-- The key of an advisory lock. The number is "fencepos" in ASCII: others hash texts too, with seeds like 0.
CREATE FUNCTION fencepost.lock_key(name text, token bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT pg_catalog.hashtextextended($1 COLLATE pg_catalog."C", $2 OPERATOR(pg_catalog.#) 7378424937699110771)
$$;

-- Enters: raises the mark, or refuses. Call it as a statement of its own, first in the transaction.
CREATE FUNCTION fencepost.enter(name text, token bigint, who text DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER AS $$
#variable_conflict use_column
DECLARE
  locked pg_catalog.bool;
  secret pg_catalog.text COLLATE pg_catalog."C";
  here pg_catalog.text COLLATE pg_catalog."C";
  noted pg_catalog.text COLLATE pg_catalog."C";
BEGIN
  -- The usual case: the mark is this token, and nobody is about to replace it.
  IF pg_catalog.current_setting('transaction_isolation') OPERATOR(pg_catalog.=) 'read committed' THEN
    SELECT pg_catalog.pg_try_advisory_xact_lock_shared(fencepost.lock_key(enter.name, enter.token)) INTO locked
      FROM fencepost.marks m
     WHERE m.name OPERATOR(pg_catalog.=) enter.name COLLATE pg_catalog."C"
       AND m.token OPERATOR(pg_catalog.=) enter.token;
    IF locked THEN
      -- Again, with a snapshot that is newer than the lock.
      SELECT m.secret INTO secret FROM fencepost.marks m
       WHERE m.name OPERATOR(pg_catalog.=) enter.name COLLATE pg_catalog."C"
         AND m.token OPERATOR(pg_catalog.=) enter.token;
    END IF;
  END IF;
  IF secret IS NULL THEN
    secret := fencepost.admit(enter.name COLLATE pg_catalog."C", enter.token, enter.who);
  END IF;
  IF pg_catalog.current_setting('transaction_read_only') OPERATOR(pg_catalog.=) 'on' THEN
    -- No trigger will ask who has entered, so it needs no transaction id.
    IF pg_catalog.pg_is_in_recovery() THEN PERFORM fencepost.refuse_standby(); END IF;
    RETURN;
  END IF;
  here := pg_catalog.pg_current_xact_id()::pg_catalog.text OPERATOR(pg_catalog.||) E'\n';
  noted := pg_catalog.current_setting('fencepost.entered', true);
  IF pg_catalog.starts_with(noted, here) IS NOT TRUE THEN noted := here; END IF;
  IF pg_catalog.strpos(noted, secret) OPERATOR(pg_catalog.=) 0 THEN
    noted := pg_catalog.set_config('fencepost.entered', noted OPERATOR(pg_catalog.||) secret, true);
  END IF;
END $$;

-- Enters in the other cases: a higher token or the first, a stale one, one that has to wait, a wrong call, REPEATABLE READ.
-- Returns the mark's secret. It has the rights of its caller, which is `enter`.
CREATE FUNCTION fencepost.admit(name text, token bigint, who text) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
  mark fencepost.marks;
  unchanged boolean;
BEGIN
  PERFORM fencepost.check_token(admit.token);
  PERFORM fencepost.check_text('lock name', admit.name, 512);
  IF admit.who IS NULL THEN
    admit.who := session_user || '@' || coalesce(host(inet_client_addr()), 'local') || ':' || pg_backend_pid();
  ELSE
    PERFORM fencepost.check_text('label', admit.who, 256);
  END IF;
  LOOP
    SELECT * INTO mark FROM fencepost.marks m WHERE m.name = admit.name;
    IF mark.token IS NULL OR mark.token < admit.token THEN
      PERFORM pg_advisory_xact_lock(fencepost.lock_key(admit.name, 0));
      SELECT * INTO mark FROM fencepost.marks m WHERE m.name = admit.name;
      IF mark.token IS NULL OR mark.token < admit.token THEN
        RETURN fencepost.set_mark(mark, admit.name, admit.token, admit.who);
      END IF;
    END IF;
    IF mark.token > admit.token THEN
      RAISE EXCEPTION 'token % for "%" is stale: % has entered (%, %)',
        admit.token, admit.name, mark.token, mark.set_by, fencepost.rfc3339(mark.set_at)
        USING ERRCODE = 'FP001',
              HINT = 'Stop this work: a later holder has the lock. Acquire it again, and start from a fresh read.';
    END IF;
    PERFORM pg_advisory_xact_lock_shared(fencepost.lock_key(admit.name, admit.token));
    SELECT m.secret, m.xmax = '0' INTO mark.secret, unchanged FROM fencepost.marks m
     WHERE m.name = admit.name AND m.token = admit.token;
    IF FOUND THEN
      -- A change that was rolled back leaves its xmax too.
      IF NOT unchanged THEN PERFORM fencepost.check_snapshot(); END IF;
      RETURN mark.secret;
    END IF;
    -- It was changed while this transaction waited.
  END LOOP;
END $$;

-- Replaces the mark `old`, and returns the new one's secret. A null token deletes it. The caller holds (name, 0), and has
-- read `old` after it got that lock.
CREATE FUNCTION fencepost.set_mark(old fencepost.marks, name text, token bigint, by text) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
  secret text;
BEGIN
  IF old.token IS NOT NULL THEN
    PERFORM pg_advisory_xact_lock(fencepost.lock_key(set_mark.name, old.token));
  END IF;
  PERFORM fencepost.check_snapshot();
  -- A mark that a crash could undo would let a stale token in.
  IF current_setting('synchronous_commit') = 'off' THEN
    PERFORM set_config('synchronous_commit', 'local', true);
  END IF;
  IF set_mark.token IS NULL THEN
    DELETE FROM fencepost.marks m WHERE m.name = set_mark.name;
  ELSIF old.token IS NULL THEN
    INSERT INTO fencepost.marks AS m (name, token, set_by, set_at)
    VALUES (set_mark.name, set_mark.token, set_mark.by, clock_timestamp())
    RETURNING m.secret INTO secret;
  ELSE
    -- Not by ON CONFLICT, which locks the row first: the new row would keep that as its xmax, and `admit` would take it for
    -- a change.
    UPDATE fencepost.marks m
       SET token = set_mark.token, secret = DEFAULT, set_by = set_mark.by, set_at = clock_timestamp()
     WHERE m.name = set_mark.name
    RETURNING m.secret INTO secret;
  END IF;
  RETURN secret;
END $$;

-- Under REPEATABLE READ and above: refuses (40001) if a transaction was committed since the snapshot. These are ids that were
-- open then, or were assigned later.
CREATE FUNCTION fencepost.check_snapshot() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  snapshot pg_snapshot := pg_current_snapshot();
  id bigint := pg_snapshot_xmax(snapshot)::text::bigint;
  status text;
  missed boolean;
BEGIN
  IF current_setting('transaction_isolation') IN ('read committed', 'read uncommitted') THEN RETURN; END IF;
  missed := EXISTS (SELECT FROM pg_snapshot_xip(snapshot) AS open (id) WHERE pg_xact_status(open.id) = 'committed');
  BEGIN
    WHILE NOT missed LOOP
      status := pg_xact_status(id::text::xid8);
      EXIT WHEN status IS NULL;
      missed := status = 'committed';
      id := id + 1;
    END LOOP;
  EXCEPTION WHEN invalid_parameter_value THEN
    -- This id has not been assigned.
  END;
  IF missed THEN
    RAISE EXCEPTION 'could not serialize access: another transaction was committed since this one began'
      USING ERRCODE = '40001',
            HINT = 'Retry the transaction, and enter first in it. If this repeats, enter once in a READ COMMITTED transaction.';
  END IF;
END $$;

-- The marks of a standby may be older than those of its primary.
CREATE FUNCTION fencepost.refuse_standby() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RAISE EXCEPTION 'cannot enter on a standby: its marks may be old' USING ERRCODE = '25006';
END $$;

-- The mark of a name, or all of them.
CREATE FUNCTION fencepost.show(name text DEFAULT NULL)
RETURNS TABLE (lock text, token bigint, set_by text, set_at text)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT m.name, m.token, m.set_by, fencepost.rfc3339(m.set_at) FROM fencepost.marks m
   WHERE $1 IS NULL OR m.name = $1 ORDER BY m.name
$$;

-- Sets a mark (a null token deletes it) and records the reset. Waits for the transactions that have entered. Returns the
-- previous mark.
CREATE FUNCTION fencepost.reset(name text, token bigint, by text, why text)
RETURNS TABLE (lock text, old_token bigint, set_by text, set_at text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
  mark fencepost.marks;
BEGIN
  PERFORM fencepost.check_text('lock name', reset.name, 512);
  PERFORM fencepost.check_text('label', reset.by, 256);
  PERFORM fencepost.check_text('reason', btrim(reset.why), 1024);
  IF reset.token IS NOT NULL THEN PERFORM fencepost.check_token(reset.token); END IF;
  PERFORM pg_advisory_xact_lock(fencepost.lock_key(reset.name, 0));
  SELECT * INTO mark FROM fencepost.marks m WHERE m.name = reset.name;
  IF mark.name IS NULL AND reset.token IS NULL THEN RETURN; END IF;
  PERFORM fencepost.set_mark(mark, reset.name, reset.token, reset.by);
  INSERT INTO fencepost.resets (name, from_token, to_token, at, by, role, why)
  VALUES (reset.name, mark.token, reset.token, clock_timestamp(), reset.by, session_user, reset.why);
  IF mark.name IS NOT NULL THEN
    RETURN QUERY SELECT mark.name, mark.token, mark.set_by, fencepost.rfc3339(mark.set_at);
  END IF;
END $$;

-- The records of resets, oldest first.
CREATE FUNCTION fencepost.audit(name text DEFAULT NULL)
RETURNS TABLE (lock text, from_token bigint, to_token bigint, by text, why text, at text)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT r.name, r.from_token, r.to_token, r.by, r.why, fencepost.rfc3339(r.at) FROM fencepost.resets r
   WHERE $1 IS NULL OR r.name = $1 ORDER BY r.number
$$;

-- Whether this very transaction has entered: it has noted its own id, and the secret that the mark has now.
CREATE FUNCTION fencepost.has_entered(name text) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
  RETURN (
    SELECT pg_catalog.starts_with(noted, pg_catalog.pg_current_xact_id()::pg_catalog.text OPERATOR(pg_catalog.||) E'\n')
           AND pg_catalog.strpos(noted, m.secret) OPERATOR(pg_catalog.>) 0
      FROM pg_catalog.current_setting('fencepost.entered', true) AS noted, fencepost.marks m
     WHERE m.name OPERATOR(pg_catalog.=) has_entered.name COLLATE pg_catalog."C");
END $$;

-- Refuses unless this very transaction has entered.
CREATE FUNCTION fencepost.check_entered(name text, relation regclass) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF name IS NULL THEN
    RAISE EXCEPTION 'write to % refused: the row has no lock name (it is NULL)', relation
      USING ERRCODE = 'FP003', HINT = 'The table is protected by fencepost: each row belongs to a lock.';
  END IF;
  IF fencepost.has_entered(name) IS NOT TRUE THEN
    RAISE EXCEPTION 'write to % refused: call fencepost.enter(%, token) first in this transaction',
      relation, quote_literal(name)
      USING ERRCODE = 'FP003',
            HINT = 'The table is protected by fencepost: hold the lock, and enter with its token before you read.';
  END IF;
END $$;

-- The trigger of a table with one lock. Its argument is the lock's name.
CREATE FUNCTION fencepost.entered_by_name() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
  IF fencepost.has_entered(TG_ARGV[0]) IS NOT TRUE THEN
    PERFORM fencepost.check_entered(TG_ARGV[0], TG_RELID);
  END IF;
  RETURN NULL;
END $$;

-- The trigger against TRUNCATE of a table whose rows name their locks: TRUNCATE would need all of them.
CREATE FUNCTION fencepost.never() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RAISE EXCEPTION '% of % refused: its rows belong to different locks', lower(TG_OP), TG_RELID::regclass
    USING ERRCODE = 'FP003', HINT = 'The table is protected by fencepost: delete the rows lock by lock.';
END $$;

-- Creates the trigger function for a column of this name, and returns its name. All tables share it.
CREATE FUNCTION fencepost.entered_by_column(relation regclass, column_name text) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  made text := 'entered_by_' || md5(column_name);
BEGIN
  PERFORM fencepost.check_column(relation, column_name);
  IF to_regprocedure(format('fencepost.%I()', made)) IS NULL THEN
    -- It runs after the write, so that no other trigger can change the name after the check. The caller chooses the
    -- column's name, and this runs with our rights: so the name is quoted as an identifier, and the body as a literal.
    -- It is not cast, because a cast may call a function of the caller.
    EXECUTE format('CREATE FUNCTION fencepost.%I() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS %L', made,
                   format($body$
      DECLARE
        was pg_catalog.text COLLATE pg_catalog."C";
        becomes pg_catalog.text COLLATE pg_catalog."C";
      BEGIN
        IF TG_OP OPERATOR(pg_catalog.<>) 'INSERT' THEN
          was := CASE WHEN OLD.%1$I IS NOT NULL THEN pg_catalog.format('%%s', OLD.%1$I) END;
          IF fencepost.has_entered(was) IS NOT TRUE THEN PERFORM fencepost.check_entered(was, TG_RELID); END IF;
        END IF;
        IF TG_OP OPERATOR(pg_catalog.<>) 'DELETE' THEN
          becomes := CASE WHEN NEW.%1$I IS NOT NULL THEN pg_catalog.format('%%s', NEW.%1$I) END;
          IF (was OPERATOR(pg_catalog.=) becomes) IS NOT TRUE AND fencepost.has_entered(becomes) IS NOT TRUE THEN
            PERFORM fencepost.check_entered(becomes, TG_RELID);
          END IF;
        END IF;
        RETURN NULL;
      END $body$, column_name));
  END IF;
  RETURN made;
END $$;

-- Refuses a column whose text depends on the session's settings: it cannot name locks.
CREATE FUNCTION fencepost.check_column(relation regclass, column_name text) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  its oid;
BEGIN
  SELECT a.atttypid INTO its FROM pg_attribute a
   WHERE a.attrelid = relation AND a.attname = column_name AND a.attnum > 0 AND NOT a.attisdropped;
  IF NOT FOUND THEN
    RAISE EXCEPTION '% has no column %: name one of its columns', relation, to_json(column_name)
      USING ERRCODE = 'FP002';
  END IF;
  WHILE (SELECT t.typtype FROM pg_type t WHERE t.oid = its) = 'd' LOOP
    SELECT t.typbasetype INTO its FROM pg_type t WHERE t.oid = its;
  END LOOP;
  IF its NOT IN ('text'::regtype, 'varchar'::regtype, 'uuid'::regtype, 'int2'::regtype, 'int4'::regtype,
                 'int8'::regtype) THEN
    RAISE EXCEPTION 'the column % of % is of type %: a lock''s name comes from text, varchar, uuid or an integer',
      to_json(column_name), relation, format_type(its, NULL) USING ERRCODE = 'FP002';
  END IF;
END $$;

-- Refuses a table that cannot be protected, and says why.
CREATE FUNCTION fencepost.check_table(relation regclass) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  r pg_class;
  wrong text;
  errcode text := 'FP002';
BEGIN
  SELECT * INTO r FROM pg_class c WHERE c.oid = relation;
  wrong := CASE r.relkind
    WHEN 'r' THEN NULL
    WHEN 'p' THEN 'is partitioned, and a trigger on it would not see what is done to a partition directly: '
                  'protect its partitions one by one'
    WHEN 'v' THEN 'is a view: protect the tables under it'
    WHEN 'm' THEN 'is a materialized view: protect the tables under it'
    WHEN 'f' THEN 'is a foreign table, which clients of its own server write: protect it there'
    ELSE 'is not a table: name one' END;
  IF wrong IS NULL AND r.relnamespace IN ('fencepost'::regnamespace, 'pg_catalog'::regnamespace) THEN
    wrong := 'belongs to fencepost or to PostgreSQL: name a table of your own';
  END IF;
  IF wrong IS NULL AND EXISTS (SELECT FROM pg_inherits i WHERE i.inhparent = relation) THEN
    wrong := 'has tables that inherit from it, and they would not be protected: protect tables without children';
  END IF;
  IF wrong IS NULL AND NOT pg_has_role(r.relowner, 'USAGE') THEN
    wrong := format('belongs to %I: protect it as its owner', pg_get_userbyid(r.relowner));
    errcode := '42501';
  END IF;
  IF wrong IS NOT NULL THEN
    RAISE EXCEPTION '% %', relation, wrong USING ERRCODE = errcode;
  END IF;
END $$;

-- Makes a table refuse every write by a transaction that has not entered: with the lock that a column of the row names,
-- or with one lock for the whole table. It runs with the rights of its caller, who must own the table. Returns whether
-- the table was protected before, by any lock.
CREATE FUNCTION fencepost.protect(relation regclass, column_name text, lock text) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  by_row text;
  by_truncate text;
  before boolean;
BEGIN
  IF (column_name IS NULL) = (lock IS NULL) THEN
    RAISE EXCEPTION 'give either the column that names the lock, or the one lock of the table'
      USING ERRCODE = 'FP002';
  END IF;
  PERFORM fencepost.check_table(relation);
  before := fencepost.unprotect(relation);
  IF lock IS NOT NULL THEN
    PERFORM fencepost.check_text('lock name', lock, 512);
    by_row := format('entered_by_name(%L)', lock);
    by_truncate := by_row;
  ELSE
    by_row := fencepost.entered_by_column(relation, column_name) || '()';
    by_truncate := 'never()';
  END IF;
  EXECUTE format('CREATE TRIGGER fencepost_rows AFTER INSERT OR UPDATE OR DELETE ON %s
                  FOR EACH ROW EXECUTE FUNCTION fencepost.%s', relation, by_row);
  EXECUTE format('CREATE TRIGGER fencepost_truncate BEFORE TRUNCATE ON %s
                  FOR EACH STATEMENT EXECUTE FUNCTION fencepost.%s', relation, by_truncate);
  EXECUTE format('ALTER TABLE %s ENABLE ALWAYS TRIGGER fencepost_rows, '
                 'ENABLE ALWAYS TRIGGER fencepost_truncate', relation);
  RETURN before;
END $$;

-- Removes the protection. Returns whether there was any.
CREATE FUNCTION fencepost.unprotect(relation regclass) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  t record;
  found_any boolean := false;
BEGIN
  FOR t IN
    SELECT g.tgname FROM pg_trigger g JOIN pg_proc p ON p.oid = g.tgfoid
     WHERE g.tgrelid = relation AND p.pronamespace = 'fencepost'::regnamespace
       AND g.tgname IN ('fencepost_rows', 'fencepost_truncate')
  LOOP
    EXECUTE format('DROP TRIGGER %I ON %s', t.tgname, relation);
    found_any := true;
  END LOOP;
  RETURN found_any;
END $$;

-- The schema itself is closed: only roles with USAGE reach any of this. Functions that change or show marks are granted
-- one by one; `protect` does only what its caller may do anyway.
REVOKE ALL ON FUNCTION fencepost.enter, fencepost.show, fencepost.reset, fencepost.audit FROM PUBLIC;
