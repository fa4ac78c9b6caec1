-- What nodes ask, a batch in each call. A function is planned once in each session; each of its
-- statements sees what was committed before that statement.
--
-- Each function locks rows by their names, or from a place on, and changes them by where they lie
-- (`ctid`): a row that is locked stays there, and the next statement sees that row as it was
-- locked. In one statement that would be wrong: its snapshot may be older than its locks.
--
-- The clock is read in the statement that locks, once the transaction has its number: see `Floor`.

-- The later of two times, at most the last that there is.
CREATE FUNCTION tickwheel.at_least(at bigint, other bigint) RETURNS bigint LANGUAGE sql IMMUTABLE
    AS $$ SELECT least(greatest(at, other), 100000000000000000) $$;

-- Which of these rows are still there, in the order in which they are due, as far as their payloads
-- have so many bytes together, or one of them.
CREATE FUNCTION tickwheel.within(tids tid[], bytes bigint) RETURNS tid[] LANGUAGE sql AS $$
    SELECT coalesce(array_agg(f.ctid), '{}') FROM (
        SELECT t.ctid, octet_length(t.payload) AS own,
            sum(octet_length(t.payload)) OVER (ORDER BY t.due, t.id) AS size
        FROM tickwheel.timer t WHERE t.ctid = ANY (tids) ORDER BY t.due, t.id) f
    WHERE f.size <= bytes OR f.size = f.own
$$;

-- A timer that was claimed. The row without a name speaks of all: `claim` is the clock, `id` how
-- many expired, `due` and `planned` the next due time and id, `tag` whether there are more ('1'),
-- and the last two from which place on, if so.
CREATE TYPE tickwheel.claimed AS (
    name text, claim bigint, id bigint, due bigint, planned bigint, attempts int, crashes int,
    tag text, payload bytea, last_due bigint, last_id bigint
);

-- Claims rows that are due, from a place on: at most `most`, and `bytes` of payloads unless it is
-- one row; what has expired ends. Of the rows that pauses hold, at most `holds` are put off, and
-- the others passed over, 5,000 at a time.
CREATE FUNCTION tickwheel.claim_batch(
    namespace text, most bigint, holds bigint, lease bigint, bytes bigint, from_due bigint,
    from_id bigint
) RETURNS SETOF tickwheel.claimed LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    now bigint;
    begun bigint;
    -- Whether a pause holds all, and the tags that pauses hold; null without any pause.
    all_held boolean;
    tags text[];
    least_id bigint := -9223372036854775808;
    tids tid[];
    held tid[] := '{}';
    size bigint;
    expires bigint;
    ended bigint := 0;
    all_until bigint;
    last tickwheel.timer;
    next tickwheel.timer;
BEGIN
    WITH c AS MATERIALIZED (SELECT tickwheel.clock() AS now),
        p AS MATERIALIZED (
            SELECT bool_or(p.scope = '') AS all_held, array_agg(substr(p.scope, 2)) AS tags
            FROM c, tickwheel.pause p WHERE p.space = namespace AND p.until > c.now)
    SELECT c.now, p.all_held, p.tags, edge.due, edge.id, f.tids, f.size, f.ends
        INTO now, all_held, tags, last.due, last.id, tids, size, expires
        FROM c CROSS JOIN p
        LEFT JOIN LATERAL (
            SELECT t.due, t.id FROM tickwheel.timer t
            WHERE p.all_held IS NOT NULL
                AND t.space || '' = namespace AND t.claim <= 0 AND t.died IS NULL
                AND (t.due, t.id) >= (from_due, from_id) AND t.due <= c.now
            ORDER BY t.due, t.id OFFSET 5000 LIMIT 1) edge ON true
        CROSS JOIN LATERAL (
            SELECT coalesce(array_agg(l.ctid), '{}') AS tids, sum(l.bytes) AS size,
                min(l.ends) AS ends
            FROM (
                SELECT t.ctid, octet_length(t.payload) AS bytes,
                    coalesce(t.planned, t.due) + t.expires AS ends
                FROM tickwheel.timer t
                WHERE t.space || '' = namespace AND t.claim <= 0 AND t.died IS NULL
                    AND (t.due, t.id) >= (from_due, from_id)
                    AND (t.due, t.id) < (coalesce(edge.due, c.now + 1), coalesce(edge.id, least_id))
                    AND NOT coalesce(p.all_held OR t.tag = ANY (p.tags), false)
                ORDER BY t.due, t.id LIMIT most FOR UPDATE SKIP LOCKED) l) f;
    IF cardinality(tids) = most AND most > 0 THEN
        SELECT t.* INTO last FROM tickwheel.timer t WHERE t.ctid = tids[cardinality(tids)];
    END IF;
    -- A row that has ended is not seen any more where it lay.
    IF expires < now THEN
        DELETE FROM tickwheel.timer t
            WHERE t.ctid = ANY (tids) AND now > coalesce(t.planned, t.due) + t.expires;
        GET DIAGNOSTICS ended = ROW_COUNT;
    END IF;
    IF size > bytes THEN
        tids := tickwheel.within(tids, bytes);
        IF cardinality(tids) > 0 THEN
            SELECT t.* INTO last FROM tickwheel.timer t WHERE t.ctid = tids[cardinality(tids)];
        END IF;
    END IF;
    IF all_held IS NOT NULL THEN
        held := ARRAY(
            SELECT t.ctid FROM tickwheel.timer t
            WHERE t.space || '' = namespace AND t.claim <= 0 AND t.died IS NULL
                AND (t.due, t.id) >= (from_due, from_id)
                AND (t.due, t.id) < (coalesce(last.due, now + 1), coalesce(last.id, least_id))
                AND (all_held OR t.tag = ANY (tags))
            ORDER BY t.due, t.id LIMIT holds FOR UPDATE SKIP LOCKED);
    END IF;
    begun := tickwheel.clock();
    IF cardinality(held) = holds AND most = 0 THEN
        last.due := from_due;
        last.id := from_id;
    END IF;
    IF cardinality(held) > 0 THEN
        -- A pause that ends or is shortened meanwhile waits for this claim, and lets go what it
        -- puts off: nothing else would.
        PERFORM FROM unnest(ARRAY[''] || ARRAY(
                SELECT DISTINCT 't' || t.tag FROM tickwheel.timer t
                WHERE t.ctid = ANY (held) AND t.tag IS NOT NULL)) AS s(scope)
            CROSS JOIN LATERAL (
                SELECT FROM tickwheel.pause p
                WHERE p.space = namespace AND p.scope = s.scope AND p.until > now FOR SHARE) p;
        SELECT p.until INTO all_until FROM tickwheel.pause p
            WHERE p.space = namespace AND p.scope = '' AND p.until > now;
        -- A pause may be over by now: no row becomes due before `begun`, see `Floor`.
        UPDATE tickwheel.timer t SET held_from = coalesce(t.held_from, t.due),
            planned = coalesce(t.planned, t.due), due = greatest(begun, all_until, (
                SELECT p.until FROM tickwheel.pause p
                WHERE p.space = namespace AND p.scope = 't' || t.tag AND p.until > now))
        WHERE t.ctid = ANY (held) AND (all_until IS NOT NULL OR (
            SELECT true FROM tickwheel.pause p
            WHERE p.space = namespace AND p.scope = 't' || t.tag AND p.until > now));
    END IF;
    RETURN QUERY UPDATE tickwheel.timer t SET claim = greatest(begun, abs(t.claim) + 1),
        until = begun + lease, waits_until = NULL, held_from = NULL, attempts = t.attempts + 1
        WHERE t.ctid = ANY (tids)
        RETURNING t.name, t.claim, t.id, t.due, coalesce(t.planned, t.due), t.attempts, t.crashes,
            t.tag, t.payload, NULL::bigint, NULL::bigint;
    SELECT t.* INTO next FROM tickwheel.timer t
        WHERE t.space || '' = namespace AND t.claim <= 0 AND t.died IS NULL AND t.due > now
        ORDER BY t.due, t.id LIMIT 1;
    RETURN QUERY SELECT NULL, now, ended, next.due, next.id, 0, 0,
        (last.due IS NOT NULL)::int::text, NULL::bytea, last.due, last.id;
END $$;

-- Locks keys' rows, in the order of their names, waiting for who has them. What was deleted or
-- renamed meanwhile may be there again: the next look has a snapshot of its own.
CREATE FUNCTION tickwheel.wait_for(namespace text, names text[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    one text;
BEGIN
    FOR one IN SELECT n FROM unnest(names) AS n ORDER BY n LOOP
        LOOP
            PERFORM FROM tickwheel.timer t WHERE t.space = namespace AND t.name = one FOR UPDATE;
            EXIT WHEN FOUND;
            PERFORM FROM tickwheel.timer t WHERE t.space = namespace AND t.name = one;
            EXIT WHEN NOT FOUND;
        END LOOP;
    END LOOP;
END $$;

-- Which of a batch's rows, by their numbers, do not exist: those that could not be locked do.
CREATE FUNCTION tickwheel.missing(namespace text, names text[], numbers bigint[])
RETURNS SETOF bigint LANGUAGE plpgsql AS $$
DECLARE
    number bigint;
BEGIN
    FOREACH number IN ARRAY numbers LOOP
        PERFORM FROM tickwheel.timer t WHERE t.space = namespace AND t.name = names[number];
        IF NOT FOUND THEN
            RETURN NEXT number;
        END IF;
    END LOOP;
END $$;

-- Renews claims. Answers as all batches do: the row with number 0 has the clock; a row whose claim
-- is another's by now, or that does not exist, is false; one that somebody has locked is left out.
CREATE FUNCTION tickwheel.renew_batch(
    namespace text, names text[], tokens bigint[], terms bigint[]
) RETURNS TABLE (number bigint, due bigint, id bigint, answer boolean)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    now bigint;
    tids tid[];
    fenced bigint[];
    absent bigint[];
BEGIN
    WITH c AS MATERIALIZED (SELECT tickwheel.clock() AS now)
    SELECT min(c.now), array_agg(CASE WHEN t.claim = i.token THEN t.ctid END),
        array_agg(i.n) FILTER (WHERE t.claim <> i.token),
        coalesce(array_agg(i.n) FILTER (WHERE t.claim IS NULL), '{}')
        INTO now, tids, fenced, absent
        FROM c CROSS JOIN unnest(names, tokens) WITH ORDINALITY AS i(name, token, n)
        LEFT JOIN LATERAL (
            SELECT t.ctid, t.claim FROM tickwheel.timer t
            WHERE t.space = namespace AND t.name = i.name LIMIT 1 FOR UPDATE SKIP LOCKED) t ON true;
    RETURN QUERY UPDATE tickwheel.timer t SET until = now + k.term
        FROM unnest(tids, terms) WITH ORDINALITY AS k(tid, term, n)
        WHERE t.ctid = k.tid RETURNING k.n, NULL::bigint, NULL::bigint, true;
    -- No renewals ask what time it is.
    RETURN QUERY SELECT 0::bigint, coalesce(now, tickwheel.clock()), NULL::bigint, NULL::boolean;
    RETURN QUERY SELECT n, NULL::bigint, NULL::bigint, false FROM unnest(fenced) AS n;
    RETURN QUERY SELECT n, NULL::bigint, NULL::bigint, false
        FROM tickwheel.missing(namespace, names, absent) AS n;
END $$;

-- Ends claims. Kinds: 0 done, 1 retry, 2 again, 3 dead, 4 given back, 5 put back. What waits for
-- the end of the run takes the timer's place, whatever its outcome; where that was cancelled, the
-- row ends.
CREATE FUNCTION tickwheel.ack_batch(
    namespace text, names text[], tokens bigint[], kinds int[], ats bigint[], afters bigint[],
    planned_ats bigint[], payloads bytea[], reasons text[], waits boolean
) RETURNS TABLE (number bigint, due bigint, id bigint, answer boolean)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    now bigint;
    gone tid[];
    ended bigint[];
    kept tid[];
    fenced bigint[];
    absent bigint[];
    unknown bigint[];
    deleted bigint;
BEGIN
    PERFORM pg_current_xact_id();
    LOOP
        IF waits THEN
            PERFORM tickwheel.wait_for(namespace, names);
        END IF;
        WITH c AS MATERIALIZED (SELECT tickwheel.clock() AS now)
        SELECT min(c.now), array_agg(t.ctid) FILTER (WHERE t.is_own AND t.ends),
            array_agg(i.n) FILTER (WHERE t.is_own AND t.ends),
            array_agg(CASE WHEN t.is_own AND NOT t.ends THEN t.ctid END),
            array_agg(i.n) FILTER (WHERE NOT t.is_own),
            coalesce(array_agg(i.n) FILTER (WHERE t.is_own IS NULL), '{}')
            INTO now, gone, ended, kept, fenced, absent
            FROM c CROSS JOIN unnest(names, tokens, kinds) WITH ORDINALITY
                AS i(name, token, kind, n)
            LEFT JOIN LATERAL (
                SELECT t.ctid, t.claim = i.token AND t.claim > 0 AS is_own,
                    t.next IS NULL AND (t.next_id IS NOT NULL OR i.kind = 0
                        OR t.cancelled AND i.kind NOT IN (4, 5)) AS ends
                FROM tickwheel.timer t WHERE t.space = namespace AND t.name = i.name
                LIMIT 1 FOR UPDATE SKIP LOCKED) t ON true;
        unknown := ARRAY(SELECT tickwheel.missing(namespace, names, absent));
        -- Who waited for a row that went may find it there again, and locked.
        EXIT WHEN NOT waits OR cardinality(unknown) = cardinality(absent);
    END LOOP;
    DELETE FROM tickwheel.timer t WHERE t.ctid = ANY (gone);
    GET DIAGNOSTICS deleted = ROW_COUNT;
    IF deleted < cardinality(gone) THEN
        RAISE EXCEPTION 'a trigger keeps a timer that has ended';
    END IF;
    RETURN QUERY SELECT 0::bigint, now, NULL::bigint, NULL::boolean;
    RETURN QUERY SELECT n, NULL::bigint, NULL::bigint, true FROM unnest(ended) AS n;
    RETURN QUERY SELECT n, NULL::bigint, NULL::bigint, false FROM unnest(fenced) AS n;
    RETURN QUERY SELECT n, NULL::bigint, NULL::bigint, false FROM unnest(unknown) AS n;
    RETURN QUERY UPDATE tickwheel.timer t SET
        claim = -t.claim, next = NULL, next_id = NULL,
        due = CASE WHEN t.next_id IS NOT NULL THEN greatest(t.next, now)
            WHEN k.kind = 3 THEN t.due WHEN k.kind = 4 THEN greatest(t.due, now)
            ELSE tickwheel.at_least(k.at, now + k.after) END,
        id = coalesce(t.next_id, t.id),
        planned = CASE WHEN t.next_id IS NOT NULL THEN coalesce(t.planned, t.next)
            WHEN k.kind = 2 THEN k.planned ELSE coalesce(t.planned, t.due) END,
        payload = CASE WHEN t.next_id IS NULL AND k.kind = 2 THEN k.payload ELSE t.payload END,
        attempts = CASE WHEN t.next_id IS NOT NULL OR k.kind = 2 THEN 0
            WHEN k.kind = 4 THEN t.attempts - 1 ELSE t.attempts END,
        crashes = CASE WHEN t.next_id IS NULL AND k.kind IN (3, 4) THEN t.crashes ELSE 0 END,
        cancelled = t.next_id IS NULL AND t.cancelled,
        name = CASE WHEN t.next_id IS NULL AND k.kind = 3 THEN 'd' || lpad(to_hex(t.id), 16, '0')
            ELSE t.name END,
        former = CASE WHEN t.next_id IS NULL AND k.kind = 3 THEN t.name END,
        died = CASE WHEN t.next_id IS NULL AND k.kind = 3 THEN now END,
        reason = CASE WHEN t.next_id IS NULL AND k.kind = 3 THEN k.reason END
        FROM unnest(kept, kinds, ats, afters, planned_ats, payloads, reasons) WITH ORDINALITY
            AS k(tid, kind, at, after, planned, payload, reason, n)
        WHERE t.ctid = k.tid
        RETURNING k.n, CASE WHEN t.died IS NULL THEN t.due END,
            CASE WHEN t.died IS NULL THEN t.id END, true;
END $$;

-- Cancels timers. The payload of one that waits for the end of a run is read before it goes.
-- Answers with true and a payload: cancelled; true and none: it runs; false: unknown.
CREATE FUNCTION tickwheel.cancel_batch(namespace text, names text[], waits boolean)
RETURNS TABLE (number bigint, due bigint, id bigint, answer boolean, payload bytea)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    now bigint;
    gone tid[];
    marked tid[];
    later bytea[];
    absent bigint[];
    unknown bigint[];
BEGIN
    LOOP
        IF waits THEN
            PERFORM tickwheel.wait_for(namespace, names);
        END IF;
        WITH c AS MATERIALIZED (SELECT tickwheel.clock() AS now)
        SELECT min(c.now), array_agg(CASE WHEN t.ends THEN t.ctid END),
            array_agg(CASE WHEN NOT t.ends THEN t.ctid END), array_agg(t.later),
            coalesce(array_agg(i.n) FILTER (WHERE t.ends IS NULL), '{}')
            INTO now, gone, marked, later, absent
            FROM c CROSS JOIN unnest(names) WITH ORDINALITY AS i(name, n)
            LEFT JOIN LATERAL (
                SELECT t.ctid, t.claim <= 0 AND NOT t.cancelled AS ends,
                    CASE WHEN t.next IS NOT NULL THEN t.payload END AS later
                FROM tickwheel.timer t WHERE t.space = namespace AND t.name = i.name
                LIMIT 1 FOR UPDATE SKIP LOCKED) t ON true;
        unknown := ARRAY(SELECT tickwheel.missing(namespace, names, absent));
        -- Who waited for a row that went may find it there again, and locked.
        EXIT WHEN NOT waits OR cardinality(unknown) = cardinality(absent);
    END LOOP;
    RETURN QUERY DELETE FROM tickwheel.timer t USING unnest(gone) WITH ORDINALITY AS k(tid, n)
        WHERE t.ctid = k.tid RETURNING k.n, NULL::bigint, NULL::bigint, true, t.payload;
    RETURN QUERY UPDATE tickwheel.timer t SET next = NULL,
        cancelled = t.cancelled OR t.next IS NULL,
        payload = CASE WHEN t.next IS NULL THEN t.payload ELSE '' END,
        tag = CASE WHEN t.next IS NULL THEN t.tag END,
        planned = CASE WHEN t.next IS NULL THEN t.planned END,
        expires = CASE WHEN t.next IS NULL THEN t.expires END,
        waits_until = CASE WHEN t.next IS NULL THEN t.waits_until END
        FROM unnest(marked, later) WITH ORDINALITY AS k(tid, later, n)
        WHERE t.ctid = k.tid RETURNING k.n, NULL::bigint, NULL::bigint, true, k.later;
    RETURN QUERY SELECT 0::bigint, now, NULL::bigint, NULL::boolean, NULL::bytea;
    RETURN QUERY SELECT n, NULL::bigint, NULL::bigint, false, NULL::bytea FROM unnest(unknown) AS n;
END $$;

-- Moves timers. Answers 1: moved; 2: it runs; 3: unknown.
CREATE FUNCTION tickwheel.touch_batch(
    namespace text, names text[], ats bigint[], afters bigint[], planned_ats bigint[],
    tells boolean, waits boolean
) RETURNS TABLE (number bigint, due bigint, id bigint, answer int)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    now bigint;
    moved tid[];
    running bigint[];
    absent bigint[];
    unknown bigint[];
BEGIN
    PERFORM pg_current_xact_id();
    LOOP
        IF waits THEN
            PERFORM tickwheel.wait_for(namespace, names);
        END IF;
        WITH c AS MATERIALIZED (SELECT tickwheel.clock() AS now)
        SELECT min(c.now), array_agg(CASE WHEN t.moves THEN t.ctid END),
            array_agg(i.n) FILTER (WHERE NOT t.moves),
            coalesce(array_agg(i.n) FILTER (WHERE t.moves IS NULL), '{}')
            INTO now, moved, running, absent
            FROM c CROSS JOIN unnest(names) WITH ORDINALITY AS i(name, n)
            LEFT JOIN LATERAL (
                SELECT t.ctid,
                    CASE WHEN t.claim > 0 THEN t.next IS NOT NULL ELSE NOT t.cancelled END AS moves
                FROM tickwheel.timer t WHERE t.space = namespace AND t.name = i.name
                LIMIT 1 FOR UPDATE SKIP LOCKED) t ON true;
        unknown := ARRAY(SELECT tickwheel.missing(namespace, names, absent));
        -- Who waited for a row that went may find it there again, and locked.
        EXIT WHEN NOT waits OR cardinality(unknown) = cardinality(absent);
    END LOOP;
    RETURN QUERY SELECT 0::bigint, now, NULL::bigint, 0;
    RETURN QUERY SELECT n, NULL::bigint, NULL::bigint, 2 FROM unnest(running) AS n;
    RETURN QUERY SELECT n, NULL::bigint, NULL::bigint, 3 FROM unnest(unknown) AS n;
    RETURN QUERY WITH moved AS (
            UPDATE tickwheel.timer t SET
                due = CASE WHEN t.claim > 0 THEN t.due ELSE k.moment END,
                next = CASE WHEN t.claim > 0 THEN k.moment END,
                planned = nullif(k.planned, k.moment), held_from = NULL
            FROM (
                SELECT tid, tickwheel.at_least(at, now + after) AS moment, planned, n
                FROM unnest(moved, ats, afters, planned_ats) WITH ORDINALITY
                    AS i(tid, at, after, planned, n)) k
            WHERE t.ctid = k.tid
            RETURNING k.n, CASE WHEN t.claim <= 0 THEN t.due END AS due,
                CASE WHEN t.claim <= 0 THEN t.id END AS id),
        told AS (SELECT tickwheel.tell(namespace, f.due, f.id) FROM (
            SELECT m.due, m.id FROM moved m WHERE m.due IS NOT NULL ORDER BY m.due, m.id LIMIT 1) f
            WHERE tells)
        SELECT m.n, m.due, m.id, 1 FROM moved m WHERE (SELECT count(*) FROM told) >= 0;
END $$;

-- Schedules timers. Keys that somebody has locked are left out (3), unless it waits for them as a
-- part of a user's transaction: then `patience` is null. A key that is being inserted is seen by
-- nobody and cannot be left out; all of it fails after that patience. A row that was there has been
-- locked before it was changed, which its `xmax` tells: 1 is new, 2 replaced, and no answer kept.
-- Rows are locked in the order of their names, so that no two batches wait for each other.
CREATE FUNCTION tickwheel.schedule_batch(
    namespace text, names text[], ids bigint[], ats bigint[], afters bigint[], planned_ats bigint[],
    max_waits bigint[], expiries bigint[], tags text[], payloads bytea[], kept bigint[],
    patience text, tells boolean
) RETURNS TABLE (answer int, due bigint, place_id bigint, id bigint)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    now bigint;
    locked bigint[] := '{}';
BEGIN
    PERFORM pg_current_xact_id();
    IF patience IS NULL THEN
        now := tickwheel.clock();
    ELSE
        WITH c AS MATERIALIZED (SELECT tickwheel.clock() AS now)
        SELECT min(c.now), coalesce(array_agg(f.id) FILTER (WHERE f.id IS NOT NULL), '{}')
            INTO now, locked
            FROM c LEFT JOIN LATERAL (
                SELECT i.id FROM unnest(names, ids) AS i(name, id)
                CROSS JOIN LATERAL (
                    SELECT FROM tickwheel.timer t
                    WHERE t.space = namespace AND t.name = i.name LIMIT 1) f
                LEFT JOIN LATERAL (
                    SELECT t.name FROM tickwheel.timer t
                    WHERE t.space = namespace AND t.name = i.name
                    LIMIT 1 FOR UPDATE SKIP LOCKED) t ON true
                WHERE starts_with(i.name, 'k') AND t.name IS NULL) f ON true;
        PERFORM set_config('lock_timeout', patience, true);
    END IF;
    RETURN QUERY SELECT 0, now, NULL::bigint, 0::bigint;
    RETURN QUERY SELECT 3, NULL::bigint, NULL::bigint, l FROM unnest(locked) AS l;
    RETURN QUERY WITH written AS (
            INSERT INTO tickwheel.timer AS t
                (space, name, due, id, payload, tag, planned, expires, waits_until)
            SELECT namespace, i.name, i.due, i.id, i.payload, i.tag,
                CASE WHEN i.ends IS NULL AND i.planned <> i.due THEN i.planned END, i.expires,
                i.ends
            FROM (
                SELECT name, id, least(tickwheel.at_least(at, now + after), now + max_wait) AS due,
                    planned, payload, tag, expires, now + max_wait AS ends
                FROM unnest(names, ids, ats, afters, planned_ats, max_waits, expiries, tags,
                    payloads)
                    AS i(name, id, at, after, planned, max_wait, expires, tag, payload)
                ORDER BY name COLLATE "C") i
            WHERE i.id <> ALL (locked)
            ON CONFLICT (space, name) DO UPDATE SET
                due = CASE WHEN t.claim > 0 THEN t.due ELSE least(excluded.due, CASE
                    WHEN excluded.waits_until IS NOT NULL AND t.waits_until IS NOT NULL
                    THEN greatest(t.waits_until, tickwheel.clock()) END) END,
                next = CASE WHEN t.claim > 0 THEN least(excluded.due, CASE
                    WHEN excluded.waits_until IS NOT NULL AND t.waits_until IS NOT NULL
                    THEN greatest(t.waits_until, tickwheel.clock()) END) END,
                id = CASE WHEN t.claim > 0 THEN t.id ELSE excluded.id END,
                next_id = CASE WHEN t.claim > 0 THEN excluded.id END,
                attempts = CASE WHEN t.claim > 0 THEN t.attempts ELSE 0 END,
                crashes = CASE WHEN t.claim > 0 THEN t.crashes ELSE 0 END,
                cancelled = t.claim > 0 AND t.cancelled,
                waits_until = CASE WHEN excluded.waits_until IS NOT NULL
                    THEN least(t.waits_until, excluded.waits_until) END,
                payload = excluded.payload, tag = excluded.tag, planned = excluded.planned,
                expires = excluded.expires, held_from = NULL
            WHERE excluded.id <> ALL (kept)
                OR CASE WHEN t.next_id IS NULL THEN t.cancelled ELSE t.next IS NULL END
                OR (t.claim <= 0 OR t.next IS NOT NULL)
                    AND now > coalesce(t.planned, t.next, t.due) + t.expires
            RETURNING coalesce(t.next_id, t.id) AS id, CASE WHEN t.claim <= 0 THEN t.due END AS due,
                t.xmax <> 0 AS replaced),
        told AS (SELECT tickwheel.tell(namespace, f.due, f.id) FROM (
            SELECT w.due, w.id FROM written w WHERE w.due IS NOT NULL ORDER BY w.due, w.id LIMIT 1)
            f WHERE tells)
        SELECT 1 + w.replaced::int, w.due, CASE WHEN w.due IS NOT NULL THEN w.id END, w.id
        FROM written w WHERE (SELECT count(*) FROM told) >= 0;
END $$;

-- Takes over claims that have run out, of tokens from `floor` on, and in at most so many crashes:
-- the first row that nobody has locked says from how many crashes on. From `alone` crashes on they
-- count as attempts. What waits for the end of the run takes the timer's place; where that was
-- cancelled, or has expired, the row ends. Answers as a claim.
CREATE FUNCTION tickwheel.take_over_batch(
    namespace text, most bigint, lease bigint, bytes bigint, most_crashes int, floor bigint,
    alone int
) RETURNS SETOF tickwheel.claimed LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    now bigint;
    level int;
    tids tid[];
    part tid[];
    ended bigint;
    next tickwheel.timer;
BEGIN
    WITH c AS MATERIALIZED (SELECT tickwheel.clock() AS now)
    SELECT t.crashes INTO level FROM c, tickwheel.timer t
        WHERE t.space || '' = namespace AND t.claim > 0 AND t.claim >= floor AND t.until <= c.now
            AND t.crashes <= most_crashes
        ORDER BY t.crashes, t.claim LIMIT 1 FOR UPDATE OF t SKIP LOCKED;
    -- Of those that were in no crash a hundred, of those in one ten, of those in more one.
    most := CASE level WHEN 0 THEN most WHEN 1 THEN (most + 9) / 10 ELSE (most + 99) / 100 END;
    WITH c AS MATERIALIZED (SELECT tickwheel.clock() AS now)
    SELECT min(c.now), coalesce(array_agg(f.ctid) FILTER (WHERE f.found), '{}') INTO now, tids
        FROM c LEFT JOIN LATERAL (
            SELECT t.ctid, true AS found FROM tickwheel.timer t
            WHERE t.space || '' = namespace AND t.claim > 0 AND t.claim >= floor
                AND t.until <= c.now AND t.crashes = level
            ORDER BY t.claim LIMIT most FOR UPDATE SKIP LOCKED) f ON true;
    IF cardinality(tids) > 0 THEN
        PERFORM pg_current_xact_id();
        now := tickwheel.clock();
    END IF;
    WITH freed AS (
        UPDATE tickwheel.timer t SET claim = -t.claim, attempts = 0, crashes = 0,
            cancelled = false, due = greatest(t.next, now), id = coalesce(t.next_id, t.id),
            planned = coalesce(t.planned, t.next), next = NULL, next_id = NULL, held_from = NULL
        WHERE t.ctid = ANY (tids) AND t.next IS NOT NULL RETURNING t.due, t.id)
        SELECT f.due, f.id INTO next.due, next.id FROM freed f ORDER BY f.due, f.id LIMIT 1;
    WITH gone AS (
        DELETE FROM tickwheel.timer t WHERE t.ctid = ANY (tids)
            AND (t.next_id IS NOT NULL OR now > coalesce(t.planned, t.due) + t.expires)
        RETURNING t.next_id)
        SELECT count(*) FILTER (WHERE g.next_id IS NULL) INTO ended FROM gone g;
    part := tickwheel.within(tids, bytes);
    RETURN QUERY UPDATE tickwheel.timer t SET claim = greatest(now, t.claim + 1),
        until = now + lease, waits_until = NULL, held_from = NULL, crashes = t.crashes + 1,
        attempts = t.attempts + (t.crashes >= alone)::int
        WHERE t.ctid = ANY (part)
        RETURNING t.name, t.claim, t.id, t.due, coalesce(t.planned, t.due), t.attempts, t.crashes,
            t.tag, t.payload, NULL::bigint, NULL::bigint;
    RETURN QUERY SELECT NULL, now, ended, next.due, next.id, 0, 0,
        (cardinality(tids) = most)::int::text, NULL::bytea, NULL::bigint, NULL::bigint;
END $$;

-- Looks for what no claim has met: the first free row that is due from `dues` on, and whether a
-- pause holds that; the oldest claim of tokens from `claims` on, and whether one of those has run
-- out. `running`: all transactions before that number had ended before this looked. `number`: one
-- that was taken after `now`, unless none above `above` has ended.
CREATE FUNCTION tickwheel.look(namespace text, dues bigint, claims bigint, above bigint)
RETURNS TABLE (
    now bigint, due bigint, id bigint, held boolean, oldest bigint, has_ended boolean,
    running bigint, number bigint, started bigint
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    first_tag text;
BEGIN
    now := tickwheel.clock();
    running := pg_snapshot_xmin(pg_current_snapshot())::text::bigint;
    IF pg_snapshot_xmax(pg_current_snapshot())::text::bigint - 1 > above THEN
        number := pg_current_xact_id()::text::bigint;
    END IF;
    started := (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint;
    SELECT t.due, t.id, t.tag INTO due, id, first_tag FROM tickwheel.timer t
        WHERE t.space || '' = namespace AND t.claim <= 0 AND t.died IS NULL AND t.due >= dues
        ORDER BY t.due, t.id LIMIT 1;
    held := coalesce(due <= now, false) AND EXISTS (
        SELECT FROM tickwheel.pause p WHERE p.space = namespace AND p.until > now
            AND (p.scope = '' OR p.scope = 't' || first_tag));
    SELECT t.claim INTO oldest FROM tickwheel.timer t
        WHERE t.space || '' = namespace AND t.claim > 0 AND t.claim >= claims
        ORDER BY t.claim LIMIT 1;
    has_ended := oldest IS NOT NULL AND EXISTS (
        SELECT FROM tickwheel.timer t
        WHERE t.space || '' = namespace AND t.claim > 0 AND t.claim >= claims AND t.until <= now);
    RETURN NEXT;
END $$;

-- A session keeps the plans of functions, also those that were made while the table was empty: each
-- statement looks rows up, one at a time, by the one index that fits, or by where they lie. The
-- functions are named: the schema may have others.
DO $$
DECLARE
    one regprocedure;
BEGIN
    FOR one IN SELECT p.oid FROM pg_proc p JOIN pg_class c ON c.relnamespace = p.pronamespace
        WHERE c.oid = 'tickwheel.timer'::regclass AND p.proname IN ('claim_batch', 'wait_for',
            'missing', 'renew_batch', 'ack_batch', 'cancel_batch', 'touch_batch', 'schedule_batch',
            'take_over_batch', 'look') LOOP
        EXECUTE format('ALTER FUNCTION %s SET plan_cache_mode = force_generic_plan
            SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off
            SET enable_mergejoin = off SET enable_sort = off SET jit = off', one);
    END LOOP;
END $$;
