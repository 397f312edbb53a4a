-- Version 1 of the component "fences": what lets a database refuse a stale token.
--
--   marks    a row per lock name: the highest token that has entered, and the transaction that entered last
--   resets   a row per reset, never changed
--
-- What must hold: a transaction that has entered has written the mark's row, and so has it locked until it ends.
-- Nobody enters between its check and its writes. In READ COMMITTED a statement that comes after `enter` sees all
-- that was done under the mark before; under REPEATABLE READ and above, who had to wait is refused by the server
-- (40001) and tries the transaction again.
--
-- SQLSTATEs: FP001 the token is stale; FP002 no token, no name, no such table: the call is wrong; FP003 a protected
-- table was written by a transaction that has not entered.

CREATE TABLE fencepost.marks (
  name text COLLATE "C" PRIMARY KEY,
  token bigint NOT NULL CHECK (token BETWEEN 1 AND 9007199254740991),
  xid xid8 NOT NULL,
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

-- What a person reads, in one form whatever the session's settings are.
CREATE FUNCTION fencepost.rfc3339(at timestamptz) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$ SELECT to_char($1 AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') $$;

-- Refuses what is no text of 1 to `most` bytes, or has control characters.
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
    RAISE EXCEPTION '% is no token: tokens go from 1 to 9007199254740991', coalesce(token::text, 'null')
      USING ERRCODE = 'FP002', HINT = 'Pass the token of the lock that you hold.';
  END IF;
END $$;

-- Raises the mark, or refuses. Call it as a statement of its own, first in the transaction.
CREATE FUNCTION fencepost.enter(name text, token bigint, who text DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
  mark fencepost.marks;
BEGIN
  IF (enter.token BETWEEN 1 AND 9007199254740991) IS NOT TRUE THEN
    PERFORM fencepost.check_token(enter.token);
  END IF;
  IF enter.who IS NULL THEN
    enter.who := session_user || '@' || coalesce(host(inet_client_addr()), 'local') || ':' || pg_backend_pid();
  ELSE
    PERFORM fencepost.check_text('label', enter.who, 256);
  END IF;
  -- A mark that a crash could take back would let a stale token in.
  IF current_setting('synchronous_commit') = 'off' THEN
    PERFORM set_config('synchronous_commit', 'local', true);
  END IF;
  LOOP
    -- The row is written for an equal token too: it carries the transaction that is inside.
    UPDATE fencepost.marks m
       SET token = enter.token,
           xid = pg_current_xact_id(),
           set_by = CASE WHEN enter.token > m.token THEN enter.who ELSE m.set_by END,
           set_at = CASE WHEN enter.token > m.token THEN clock_timestamp() ELSE m.set_at END
     WHERE m.name = enter.name AND m.token <= enter.token;
    IF FOUND THEN RETURN; END IF;
    SELECT * INTO mark FROM fencepost.marks m WHERE m.name = enter.name;
    IF FOUND AND mark.token > enter.token THEN
      RAISE EXCEPTION 'token % for "%" is stale: % has entered (%, %)',
        enter.token, enter.name, mark.token, mark.set_by, fencepost.rfc3339(mark.set_at)
        USING ERRCODE = 'FP001',
              HINT = 'Stop this work: a later holder has the lock. Acquire it anew and begin from a fresh read.';
    END IF;
    PERFORM fencepost.check_text('lock name', enter.name, 512);
    INSERT INTO fencepost.marks (name, token, xid, set_by, set_at)
    VALUES (enter.name, enter.token, pg_current_xact_id(), enter.who, clock_timestamp())
    ON CONFLICT DO NOTHING;
    IF FOUND THEN RETURN; END IF;
    -- Somebody was faster: it is an update after all.
  END LOOP;
END $$;

-- The mark of a name, or all of them.
CREATE FUNCTION fencepost.show(name text DEFAULT NULL)
RETURNS TABLE (lock text, token bigint, set_by text, set_at text)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT m.name, m.token, m.set_by, fencepost.rfc3339(m.set_at) FROM fencepost.marks m
   WHERE $1 IS NULL OR m.name = $1 ORDER BY m.name
$$;

-- Sets a mark (a null token: forgets it) and keeps a record of it. Gives the mark that was there.
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
  -- Whoever is inside comes to its end first, and nobody enters or resets meanwhile.
  LOCK TABLE fencepost.marks IN SHARE ROW EXCLUSIVE MODE;
  DELETE FROM fencepost.marks m WHERE m.name = reset.name RETURNING * INTO mark;
  IF mark.name IS NULL AND reset.token IS NULL THEN RETURN; END IF;
  IF reset.token IS NOT NULL THEN
    INSERT INTO fencepost.marks (name, token, xid, set_by, set_at)
    VALUES (reset.name, reset.token, '0', reset.by, clock_timestamp());
  END IF;
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

-- Refuses unless this very transaction has entered. The mark's row must be of this transaction's making: a number
-- alone could be one of another server, that came with a dump.
CREATE FUNCTION fencepost.check_entered(name text, relation regclass) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
  IF check_entered.name IS NULL THEN
    RAISE EXCEPTION 'write to % refused: the row has no lock name (it is NULL)', relation
      USING ERRCODE = 'FP003', HINT = 'The table is protected by fencepost: each row belongs to a lock.';
  END IF;
  PERFORM FROM fencepost.marks m
    WHERE m.name = check_entered.name COLLATE "C" AND m.xid = pg_current_xact_id() AND age(m.xmin) <= 0;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'write to % refused: call fencepost.enter(%, token) first in this transaction',
      relation, quote_literal(check_entered.name)
      USING ERRCODE = 'FP003',
            HINT = 'The table is protected by fencepost: hold the lock, and enter with its token before you read.';
  END IF;
END $$;

-- The trigger of a table that has one lock. Its argument is the lock's name.
CREATE FUNCTION fencepost.entered_by_name() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM fencepost.check_entered(TG_ARGV[0], TG_RELID);
  RETURN NULL;
END $$;

-- The trigger against TRUNCATE of a table whose rows name their locks: it would have to enter all of them.
CREATE FUNCTION fencepost.never() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RAISE EXCEPTION '% of % refused: its rows belong to different locks', lower(TG_OP), TG_RELID::regclass
    USING ERRCODE = 'FP003', HINT = 'The table is protected by fencepost: delete the rows lock by lock.';
END $$;

-- Makes the trigger function for a column of this name, and says what it is called. One serves all tables.
CREATE FUNCTION fencepost.entered_by_column(relation regclass, column_name text) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  made text := 'entered_by_' || md5(column_name);
BEGIN
  PERFORM fencepost.check_column(relation, column_name);
  IF to_regprocedure(format('fencepost.%I()', made)) IS NULL THEN
    -- After the write, so that no other trigger can change the name once it is checked. The column's name is the
    -- caller's choice and this runs with our rights: it is quoted as a name, and the text around it as a literal. And it is not cast:
    -- a cast may be a function of the caller's.
    EXECUTE format('CREATE FUNCTION fencepost.%I() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER '
                   'SET search_path = pg_catalog, pg_temp AS %L', made, format($body$
      BEGIN
        IF TG_OP <> 'INSERT' THEN
          PERFORM fencepost.check_entered(CASE WHEN OLD.%1$I IS NOT NULL THEN format('%%s', OLD.%1$I) END, TG_RELID);
        END IF;
        IF TG_OP <> 'DELETE' THEN
          PERFORM fencepost.check_entered(CASE WHEN NEW.%1$I IS NOT NULL THEN format('%%s', NEW.%1$I) END, TG_RELID);
        END IF;
        RETURN NULL;
      END $body$, column_name));
  END IF;
  RETURN made;
END $$;

-- A column that can name locks: its text must be the same in every session, whatever its settings.
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

-- What is wrong with protecting this table, if anything is.
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
    WHEN 'f' THEN 'is a foreign table, which others write at its own server: protect it there'
    ELSE 'is no table: name one' END;
  IF wrong IS NULL AND r.relnamespace IN ('fencepost'::regnamespace, 'pg_catalog'::regnamespace) THEN
    wrong := 'is not yours to protect: it belongs to fencepost or to PostgreSQL';
  END IF;
  IF wrong IS NULL AND EXISTS (SELECT FROM pg_inherits i WHERE i.inhparent = relation) THEN
    wrong := 'has tables that inherit from it, and they would not be protected: protect tables without heirs';
  END IF;
  IF wrong IS NULL AND NOT pg_has_role(r.relowner, 'USAGE') THEN
    wrong := format('belongs to %I: protect it as its owner', pg_get_userbyid(r.relowner));
    errcode := '42501';
  END IF;
  IF wrong IS NOT NULL THEN
    RAISE EXCEPTION '% %', relation, wrong USING ERRCODE = errcode;
  END IF;
END $$;

-- Refuses every write to the table by a transaction that has not entered: with the lock that a column of the row
-- names, or with one lock for the whole table. It runs with the rights of its caller, who must own the table. Says
-- whether it was protected before, by whatever lock.
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

-- Takes the protection off. Says whether there was any.
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

-- The schema itself is closed: only who is given USAGE of it reaches any of this. What changes or shows marks is
-- given one by one; `protect` does no more than its caller may do anyway.
REVOKE ALL ON FUNCTION fencepost.enter, fencepost.show, fencepost.reset, fencepost.audit FROM PUBLIC;
