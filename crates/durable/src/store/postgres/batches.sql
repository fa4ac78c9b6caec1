-- The calls of nodes, each for a batch. A session plans a function once. Each statement of a
-- function sees all that was committed before the statement.
--
-- Each function first locks rows, and then changes the rows where they lie (`ctid`) by later
-- statements. A locked row stays where it is, and a later statement sees the row as it was locked.
-- A single statement could not do both: its snapshot may be older than its locks.
--
-- A function that makes rows due takes its transaction's number before it reads the clock: see
-- `Floor`.

-- Returns the later of two times, at most the year 5138.
CREATE FUNCTION tickwheel.at_least(at bigint, other bigint) RETURNS bigint LANGUAGE sql IMMUTABLE
    AS $$ SELECT least(greatest(at, other), 100000000000000000) $$;

-- Returns the first of these rows in the order of their due times: as many as have payloads of at
-- most `bytes` together, but at least one. Leaves out rows that were deleted.
CREATE FUNCTION tickwheel.within(tids tid[], bytes bigint) RETURNS tid[] LANGUAGE sql AS $$
    SELECT coalesce(array_agg(f.ctid), '{}') FROM (
        SELECT t.ctid, octet_length(t.payload) AS own,
            sum(octet_length(t.payload)) OVER (ORDER BY t.due, t.id) AS size
        FROM tickwheel.timer t WHERE t.ctid = ANY (tids) ORDER BY t.due, t.id) f
    WHERE f.size <= bytes OR f.size = f.own
$$;

-- A claimed timer. The row without a name is about the whole claim: `claim` is the clock, `id` the
-- number of expired timers, `attempts` that of timers that were put off because of a pause, `due`
-- and `planned` are the due time and id of the next row, `tag` is '1' if more rows are due, and
-- `last_due` and `last_id` are the place where the next claim begins.
CREATE TYPE tickwheel.claimed AS (
    name text, claim bigint, id bigint, due bigint, planned bigint, attempts int, crashes int,
    tag text, payload bytea, last_due bigint, last_id bigint
);

-- Claims due rows from a place on: at most `most` rows, and at most `bytes` of payloads unless it
-- is one row. Deletes rows that have expired. Puts off at most `holds` of the rows that pauses
-- hold, and passes over the others. While there are pauses, a call reads rows up to an edge.
CREATE FUNCTION tickwheel.claim_batch(
    namespace text, most bigint, holds bigint, lease bigint, bytes bigint, from_due bigint,
    from_id bigint
) RETURNS SETOF tickwheel.claimed LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    now bigint;
    begun bigint;
    -- Whether all timers are paused, and which tags are. Both are null if there is no pause.
    all_held boolean;
    tags text[];
    least_id bigint := -9223372036854775808;
    tids tid[];
    held tid[] := '{}';
    size bigint;
    expires bigint;
    ended bigint := 0;
    -- The pauses that hold these rows, and their ends.
    scopes text[];
    untils bigint[];
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
            ORDER BY t.due, t.id
            OFFSET CASE most WHEN 0 THEN holds ELSE greatest(5000, 20 * most) END LIMIT 1
        ) edge ON true
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
    -- A claim that is far behind puts nothing off, as other timers wait for it: looks do that.
    IF last.due IS NOT NULL AND most > 0 THEN
        holds := 0;
    END IF;
    IF cardinality(tids) = most AND most > 0 THEN
        SELECT t.* INTO last FROM tickwheel.timer t WHERE t.ctid = tids[cardinality(tids)];
    END IF;
    -- `tids` keeps the places of the deleted rows: later statements find no row there.
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
    IF cardinality(held) > 0 THEN
        -- Locks the pauses. A call that ends or shortens one of them waits for this claim, and then
        -- releases the rows that this claim puts off. Otherwise nothing would release them.
        SELECT array_agg(p.scope), array_agg(p.until) INTO scopes, untils
            FROM unnest(ARRAY[''] || ARRAY(
                SELECT DISTINCT 't' || t.tag FROM tickwheel.timer t
                WHERE t.ctid = ANY (held) AND t.tag IS NOT NULL)) AS s(scope)
            CROSS JOIN LATERAL (
                SELECT p.scope, p.until FROM tickwheel.pause p
                WHERE p.space = namespace AND p.scope = s.scope AND p.until > now FOR SHARE) p;
        -- A pause may have ended by now, but no row may become due before `begun`: see `Floor`.
        UPDATE tickwheel.timer t SET held_from = coalesce(t.held_from, t.due),
            planned = coalesce(t.planned, t.due), due = greatest(begun, (
                SELECT max(p.until) FROM unnest(scopes, untils) AS p(scope, until)
                WHERE p.scope IN ('', 't' || t.tag)))
        WHERE t.ctid = ANY (held) AND ('' = ANY (scopes) OR 't' || t.tag = ANY (scopes));
    END IF;
    RETURN QUERY UPDATE tickwheel.timer t SET claim = greatest(begun, abs(t.claim) + 1),
        until = begun + lease, waits_until = NULL, held_from = NULL, attempts = t.attempts + 1
        WHERE t.ctid = ANY (tids)
        RETURNING t.name, t.claim, t.id, t.due, coalesce(t.planned, t.due), t.attempts, t.crashes,
            t.tag, t.payload, NULL::bigint, NULL::bigint;
    SELECT t.* INTO next FROM tickwheel.timer t
        WHERE t.space || '' = namespace AND t.claim <= 0 AND t.died IS NULL AND t.due > now
        ORDER BY t.due, t.id LIMIT 1;
    RETURN QUERY SELECT NULL, now, ended, next.due, next.id, cardinality(held), 0,
        (last.due IS NOT NULL)::int::text, NULL::bytea, last.due, last.id;
END $$;

-- Locks a batch's rows by their names. `tids`: where the rows lie, in the order of the names; null
-- for a name whose row is not locked here. `absent`: the numbers of the names that have no row.
-- Another transaction has the other rows locked. With `waits` there is one name, and the function
-- waits for that transaction.
CREATE FUNCTION tickwheel.lock_batch(
    namespace text, names text[], waits boolean, OUT now bigint, OUT tids tid[],
    OUT absent bigint[]
) LANGUAGE plpgsql AS $$
DECLARE
    own tid;
    number bigint;
BEGIN
    absent := '{}';
    IF waits THEN
        -- A policy of row security may show a row that it lets nobody lock: not without end.
        FOR tries IN 1..100 LOOP
            SELECT t.ctid INTO own FROM tickwheel.timer t
                WHERE t.space = namespace AND t.name = names[1] FOR UPDATE;
            EXIT WHEN FOUND;
            -- The other transaction may have deleted the row and inserted another one. The
            -- statement above does not see that row, as its snapshot is older.
            PERFORM FROM tickwheel.timer t WHERE t.space = namespace AND t.name = names[1];
            IF NOT FOUND THEN
                absent := '{1}';
                EXIT;
            END IF;
        END LOOP;
        IF own IS NULL AND absent = '{}' THEN
            RAISE EXCEPTION 'the timer cannot be locked' USING ERRCODE = '55P03';
        END IF;
        now := tickwheel.clock();
        tids := ARRAY[own];
        RETURN;
    END IF;
    WITH c AS MATERIALIZED (SELECT tickwheel.clock() AS now)
    SELECT min(c.now), array_agg(t.ctid) INTO now, tids FROM c CROSS JOIN unnest(names) AS i(name)
        LEFT JOIN LATERAL (
            SELECT t.ctid FROM tickwheel.timer t WHERE t.space = namespace AND t.name = i.name
            LIMIT 1 FOR UPDATE SKIP LOCKED) t ON true;
    -- An empty batch asks for the clock.
    now := coalesce(now, tickwheel.clock());
    FOR number IN
        SELECT k.n FROM unnest(tids) WITH ORDINALITY AS k(tid, n) WHERE k.tid IS NULL LOOP
        PERFORM FROM tickwheel.timer t WHERE t.space = namespace AND t.name = names[number];
        IF NOT FOUND THEN
            absent := absent || number;
        END IF;
    END LOOP;
END $$;

-- The functions below answer with a row for each name of the batch, by its number from 1. Number 0
-- has the clock. A name without a row in the answer was not changed: another transaction has the
-- row locked, or a trigger of the user's has changed the row meanwhile. The caller tries it again.
-- Which change is for which row is decided before the first change, as triggers run after each.

-- Renews claims. `answer`: true, or false if the claim is over.
CREATE FUNCTION tickwheel.renew_batch(
    namespace text, names text[], tokens bigint[], terms bigint[]
) RETURNS TABLE (number bigint, due bigint, id bigint, answer boolean)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    now bigint;
    tids tid[];
    absent bigint[];
BEGIN
    SELECT l.* INTO now, tids, absent FROM tickwheel.lock_batch(namespace, names, false) l;
    RETURN QUERY SELECT 0::bigint, now, NULL::bigint, NULL::boolean;
    RETURN QUERY SELECT n, NULL::bigint, NULL::bigint, false FROM unnest(absent) AS n;
    RETURN QUERY SELECT k.n, NULL::bigint, NULL::bigint, false
        FROM unnest(tids, tokens) WITH ORDINALITY AS k(tid, token, n)
        JOIN tickwheel.timer t ON t.ctid = k.tid WHERE t.claim <> k.token;
    RETURN QUERY UPDATE tickwheel.timer t SET until = now + k.term
        FROM unnest(tids, tokens, terms) WITH ORDINALITY AS k(tid, token, term, n)
        WHERE t.ctid = k.tid AND t.claim = k.token
        RETURNING k.n, NULL::bigint, NULL::bigint, true;
END $$;

-- Ends claims. Kinds: 0 done, 1 retry, 2 again, 3 dead, 4 given back, 5 put back. `payloads`: the
-- payload of the next timer of kind 2, and the reason of kind 3. A timer that waits for the end of
-- the run takes the row, whatever the kind; if that timer was cancelled, the row is deleted.
-- `answer`: true, or false if the claim is over. In a user's transaction (`waits`) nodes are told
-- of the timer that takes the row: a node tells itself.
CREATE FUNCTION tickwheel.ack_batch(
    namespace text, names text[], tokens bigint[], kinds int[], ats bigint[], afters bigint[],
    planned_ats bigint[], payloads bytea[], waits boolean
) RETURNS TABLE (number bigint, due bigint, id bigint, answer boolean)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    now bigint;
    tids tid[];
    absent bigint[];
    gone tid[];
    ended bigint[];
    kept tid[];
    fenced bigint[];
    deleted bigint;
BEGIN
    PERFORM pg_current_xact_id();
    SELECT l.* INTO now, tids, absent FROM tickwheel.lock_batch(namespace, names, waits) l;
    -- A user's SQL may name any token: one that is not positive belongs to nobody.
    SELECT array_agg(t.ctid) FILTER (WHERE e.is_own AND e.ends),
        array_agg(k.n) FILTER (WHERE e.is_own AND e.ends),
        array_agg(CASE WHEN e.is_own AND NOT e.ends THEN t.ctid END),
        array_agg(k.n) FILTER (WHERE NOT e.is_own)
        INTO gone, ended, kept, fenced
        FROM unnest(tids, tokens, kinds) WITH ORDINALITY AS k(tid, token, kind, n)
        LEFT JOIN tickwheel.timer t ON t.ctid = k.tid
        CROSS JOIN LATERAL (
            SELECT t.claim = k.token AND k.token > 0 AS is_own,
                t.next IS NULL AND (t.next_id IS NOT NULL OR k.kind = 0
                    OR t.cancelled AND k.kind NOT IN (4, 5)) AS ends) e;
    DELETE FROM tickwheel.timer t WHERE t.ctid = ANY (gone);
    GET DIAGNOSTICS deleted = ROW_COUNT;
    IF deleted < cardinality(gone) THEN
        RAISE EXCEPTION 'a trigger keeps a timer that has ended';
    END IF;
    RETURN QUERY SELECT 0::bigint, now, NULL::bigint, NULL::boolean;
    RETURN QUERY SELECT n, NULL::bigint, NULL::bigint, true FROM unnest(ended) AS n;
    RETURN QUERY SELECT n, NULL::bigint, NULL::bigint, false FROM unnest(absent || fenced) AS n;
    RETURN QUERY WITH kept AS (UPDATE tickwheel.timer t SET
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
        reason = CASE WHEN t.next_id IS NULL AND k.kind = 3 THEN convert_from(k.payload, 'UTF8') END
        FROM unnest(kept, kinds, ats, afters, planned_ats, payloads) WITH ORDINALITY
            AS k(tid, kind, at, after, planned, payload, n)
        WHERE t.ctid = k.tid
        RETURNING k.n, CASE WHEN t.died IS NULL THEN t.due END AS due,
            CASE WHEN t.died IS NULL THEN t.id END AS id),
        told AS (SELECT tickwheel.tell(namespace, k.due, k.id) FROM kept k
            WHERE waits AND k.due IS NOT NULL)
        SELECT k.n, k.due, k.id, true FROM kept k WHERE (SELECT count(*) FROM told) >= 0;
END $$;

-- Cancels timers. `answer`: true with a payload, the timer is gone; true without one, a handler has
-- the timer, or had it when its node died; false, there is no timer.
CREATE FUNCTION tickwheel.cancel_batch(namespace text, names text[], waits boolean)
RETURNS TABLE (number bigint, due bigint, id bigint, answer boolean, payload bytea)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    now bigint;
    tids tid[];
    absent bigint[];
    gone tid[];
    marked tid[];
    later bytea[];
BEGIN
    SELECT l.* INTO now, tids, absent FROM tickwheel.lock_batch(namespace, names, waits) l;
    -- The payload of a timer that waits for the end of a run is read before the update: an update
    -- returns the new one.
    SELECT array_agg(CASE WHEN e.ends THEN t.ctid END),
        array_agg(CASE WHEN NOT e.ends THEN t.ctid END),
        array_agg(CASE WHEN t.next IS NOT NULL THEN t.payload END)
        INTO gone, marked, later
        FROM unnest(tids) WITH ORDINALITY AS k(tid, n)
        LEFT JOIN tickwheel.timer t ON t.ctid = k.tid
        CROSS JOIN LATERAL (SELECT t.claim <= 0 AND NOT t.cancelled AS ends) e;
    RETURN QUERY SELECT 0::bigint, now, NULL::bigint, NULL::boolean, NULL::bytea;
    RETURN QUERY SELECT n, NULL::bigint, NULL::bigint, false, NULL::bytea FROM unnest(absent) AS n;
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
END $$;

-- Moves timers. `answer`: 1 moved, 2 a handler has the timer, or had it when its node died, 3 there
-- is no timer.
CREATE FUNCTION tickwheel.touch_batch(
    namespace text, names text[], ats bigint[], afters bigint[], planned_ats bigint[],
    tells boolean, waits boolean
) RETURNS TABLE (number bigint, due bigint, id bigint, answer int)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    now bigint;
    tids tid[];
    absent bigint[];
    moved tid[];
    running bigint[];
BEGIN
    PERFORM pg_current_xact_id();
    SELECT l.* INTO now, tids, absent FROM tickwheel.lock_batch(namespace, names, waits) l;
    SELECT array_agg(CASE WHEN e.moves THEN t.ctid END), array_agg(k.n) FILTER (WHERE NOT e.moves)
        INTO moved, running
        FROM unnest(tids) WITH ORDINALITY AS k(tid, n)
        LEFT JOIN tickwheel.timer t ON t.ctid = k.tid
        CROSS JOIN LATERAL (
            SELECT CASE WHEN t.claim > 0 THEN t.next IS NOT NULL ELSE NOT t.cancelled END AS moves
        ) e;
    RETURN QUERY SELECT 0::bigint, now, NULL::bigint, 0;
    RETURN QUERY SELECT n, NULL::bigint, NULL::bigint, 2 FROM unnest(running) AS n;
    RETURN QUERY SELECT n, NULL::bigint, NULL::bigint, 3 FROM unnest(absent) AS n;
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

-- Schedules timers. `answer`: 1 new, 2 replaced, 3 another transaction has the row locked; 0 is the
-- row with the clock. A timer without an answer was not written: the key's timer was kept.
--
-- With a `patience` the function leaves locked rows out. It cannot see a row that another
-- transaction is inserting: the whole batch fails if it waits for such a row for longer than
-- `patience`. In a user's transaction `patience` is null, and the function waits.
--
-- `xmax` is not zero in a row that was there before: the row was locked before it was changed. Rows
-- are written in the order of their names, so that no two batches wait for each other.
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
    IF patience IS NOT NULL THEN
        -- A commit that notifies waits for others that do, which hold no timer.
        PERFORM set_config('lock_timeout', '0', true);
    END IF;
END $$;

-- Takes over claims that have run out, of tokens from `floor` on. All timers of a call were in the
-- same number of crashes: the smallest one, if it is at most `most_crashes`. From `alone` crashes
-- on each crash counts as an attempt. A timer that waits for the end of the run takes the row. If
-- that timer was cancelled, or the claimed one has expired, the row is deleted. Answers as a claim
-- does.
CREATE FUNCTION tickwheel.take_over_batch(
    namespace text, most bigint, lease bigint, bytes bigint, most_crashes int, floor bigint,
    alone int
) RETURNS SETOF tickwheel.claimed LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    now bigint;
    level int;
    share bigint;
    tids tid[];
    part tid[];
    ended bigint;
    next tickwheel.timer;
BEGIN
    level := 0;
    LOOP
        -- The more crashes, the fewer timers run together: the one that crashes is found by that.
        share := CASE level WHEN 0 THEN most WHEN 1 THEN (most + 9) / 10 ELSE (most + 99) / 100 END;
        WITH c AS MATERIALIZED (SELECT tickwheel.clock() AS now)
        SELECT min(c.now), coalesce(array_agg(f.ctid) FILTER (WHERE f.found), '{}') INTO now, tids
            FROM c LEFT JOIN LATERAL (
                SELECT t.ctid, true AS found FROM tickwheel.timer t
                WHERE t.space || '' = namespace AND t.claim > 0 AND t.claim >= floor
                    AND t.until <= c.now AND t.crashes = level
                ORDER BY t.claim LIMIT share FOR UPDATE SKIP LOCKED) f ON true;
        EXIT WHEN cardinality(tids) > 0 OR level > 0;
        -- Reads all claims that have run out, and so only if none was in its first crash.
        WITH c AS MATERIALIZED (SELECT tickwheel.clock() AS now)
        SELECT t.crashes INTO level FROM c, tickwheel.timer t
            WHERE t.space || '' = namespace AND t.claim > 0 AND t.claim >= floor
                AND t.until <= c.now AND t.crashes BETWEEN 1 AND most_crashes
            ORDER BY t.crashes, t.claim LIMIT 1 FOR UPDATE OF t SKIP LOCKED;
        EXIT WHEN NOT FOUND;
    END LOOP;
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
    -- Rows that are still in their places were left out, because their payloads were too long. Or a
    -- user's trigger keeps them there.
    RETURN QUERY SELECT NULL, now, ended, next.due, next.id, 0, 0,
        (cardinality(tids) = share OR EXISTS (
            SELECT FROM tickwheel.timer t
            WHERE t.ctid = ANY (tids) AND t.ctid <> ALL (part)))::int::text,
        NULL::bytea, NULL::bigint, NULL::bigint;
END $$;

-- Looks for rows that no claim has met. `due` and `id`: the first free row that is due at `dues` or
-- later, and `held`: whether a pause holds it. `oldest`: the first claim whose token is `claims` or
-- greater, and `has_ended`: whether any of these claims has run out. `running`: the number of the
-- oldest transaction that runs. `number`: a transaction's number that was taken after `now`; null
-- if no transaction above `above` has ended.
CREATE FUNCTION tickwheel.look(
    namespace text, dues bigint, claims bigint, above bigint, OUT now bigint, OUT due bigint,
    OUT id bigint, OUT held boolean, OUT oldest bigint, OUT has_ended boolean, OUT running bigint,
    OUT number bigint, OUT started bigint
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    first_tag text;
BEGIN
    -- An idle node asks for nothing else. `IF` evaluates its condition without a plan, and half of
    -- the statements are left out then: an `AND` would cost twice as much.
    now := tickwheel.clock();
    running := pg_snapshot_xmin(pg_current_snapshot())::text::bigint;
    IF pg_snapshot_xmax(pg_current_snapshot())::text::bigint - 1 > above THEN
        number := pg_current_xact_id()::text::bigint;
    END IF;
    started := (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint;
    SELECT t.due, t.id, t.tag INTO due, id, first_tag FROM tickwheel.timer t
        WHERE t.space || '' = namespace AND t.claim <= 0 AND t.died IS NULL AND t.due >= dues
        ORDER BY t.due, t.id LIMIT 1;
    held := false;
    IF due <= now THEN
        held := EXISTS (
            SELECT FROM tickwheel.pause p WHERE p.space = namespace AND p.until > now
                AND (p.scope = '' OR p.scope = 't' || first_tag));
    END IF;
    SELECT t.claim INTO oldest FROM tickwheel.timer t
        WHERE t.space || '' = namespace AND t.claim > 0 AND t.claim >= claims
        ORDER BY t.claim LIMIT 1;
    has_ended := false;
    IF oldest IS NOT NULL THEN
        has_ended := EXISTS (
            SELECT FROM tickwheel.timer t WHERE t.space || '' = namespace
                AND t.claim > 0 AND t.claim >= claims AND t.until <= now);
    END IF;
END $$;

-- A session keeps the plans of functions, also plans that were made while the table was empty. The
-- settings leave one plan for each statement: it finds rows one at a time, by the one index that
-- fits, or by their places. The path is that of `tickwheel.schedule`: users call some of these. The
-- functions are named, as the schema may have other functions.
DO $$
DECLARE
    one regprocedure;
BEGIN
    FOR one IN SELECT p.oid FROM pg_proc p JOIN pg_class c ON c.relnamespace = p.pronamespace
        WHERE c.oid = 'tickwheel.timer'::regclass AND p.proname IN ('claim_batch', 'renew_batch',
            'ack_batch', 'cancel_batch', 'touch_batch', 'schedule_batch', 'take_over_batch', 'look')
        LOOP
        EXECUTE format('ALTER FUNCTION %s SET search_path = pg_catalog, pg_temp
            SET plan_cache_mode = force_generic_plan SET enable_indexscan = on
            SET enable_tidscan = on SET enable_seqscan = off SET enable_bitmapscan = off
            SET enable_hashjoin = off SET enable_mergejoin = off SET enable_sort = off
            SET jit = off', one);
    END LOOP;
END $$;
