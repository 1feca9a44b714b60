-- Temporary tables as a report of a database makes them: most stay, the newest fifth is dropped and made anew, and is
-- what most queries look at. One session of several; each has its own tables. Needs the table template.
CREATE UNLOGGED TABLE IF NOT EXISTS seen (session int, phase text, at double precision, bytes bigint, us real[]);

-- Makes the first `count` tables, and says after each how long it took.
CREATE OR REPLACE PROCEDURE fill(session int, count int) LANGUAGE plpgsql AS $$
DECLARE begun timestamptz;
BEGIN
  FOR n IN 1..count LOOP
    begun := clock_timestamp();
    EXECUTE format('CREATE TEMP TABLE t%s AS TABLE template', n);
    INSERT INTO seen VALUES (session, 'fill', extract(epoch FROM clock_timestamp()), pg_relation_size('t' || n),
      ARRAY[extract(epoch FROM clock_timestamp() - begun) * 1e6]);
    COMMIT;
  END LOOP;
END $$;

-- Looks at 16 pages at a time, seven of ten times of a table of the newest fifth. For each eight bytes read two are
-- written: a table of the newest fifth makes place for a new one. Says each second what it did.
CREATE OR REPLACE PROCEDURE use(session int, count int, seconds int) LANGUAGE plpgsql AS $$
DECLARE
  tables text[]; newest int := greatest(1, count / 5); next int := count + 1; drops int := 0;
  pages int; n int; page int; ignored bigint;
  begun timestamptz := clock_timestamp(); second timestamptz := begun; moment timestamptz;
  us real[] := '{}'; bytes bigint := 0; owed bigint := 0;
BEGIN
  SELECT array_agg('t' || g ORDER BY g) INTO tables FROM generate_series(1, count) g;
  pages := pg_relation_size('t1') / 8192;
  PERFORM setseed(session / 100.0);
  WHILE clock_timestamp() < begun + make_interval(secs => seconds) LOOP
    n := CASE WHEN random() < 0.7 THEN count - floor(random() * newest)::int
              ELSE 1 + floor(random() * (count - newest))::int END;
    page := floor(random() * (pages - 16))::int;
    moment := clock_timestamp();
    EXECUTE format('SELECT sum(id) FROM %s WHERE ctid >= ''(%s,0)'' AND ctid < ''(%s,0)''', tables[n], page, page + 16)
      INTO ignored;
    us := us || (extract(epoch FROM clock_timestamp() - moment) * 1e6)::real;
    bytes := bytes + 16 * 8192;
    owed := owed + 16 * 8192 / 4;
    IF owed > pages::bigint * 8192 THEN
      owed := owed - pages::bigint * 8192;
      n := count - newest + 1 + drops % newest;
      drops := drops + 1;
      EXECUTE format('DROP TABLE %s', tables[n]);
      COMMIT;
      EXECUTE format('CREATE TEMP TABLE t%s AS TABLE template', next);
      tables[n] := 't' || next;
      next := next + 1;
      bytes := bytes + pages::bigint * 8192;
    END IF;
    IF clock_timestamp() > second + interval '1 s' THEN
      second := clock_timestamp();
      INSERT INTO seen VALUES (session, 'use', extract(epoch FROM second), bytes, us);
      COMMIT;
      us := '{}'; bytes := 0;
    END IF;
  END LOOP;
END $$;
