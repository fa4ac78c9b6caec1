-- All that there is: one table of timers, and one of pauses. Times are microseconds since 1970, by
-- clock().

-- The one clock: inlined by the planner, and read when a row is looked at.
CREATE FUNCTION tickwheel.clock() RETURNS bigint LANGUAGE sql VOLATILE AS
    $$ SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint $$;

-- `name`: 'k' and the key; without a key 'i' and a number; dead 'd' and the timer's id in hex.
-- `claim`: the token of the handler that has it; minus the last token where none has. `until`: when
-- that claim runs out. `cancelled`: it ends with its run. `crashes`: claims that ran out.
-- `planned`: the first due time, where `due` is another. `expires`: how long after `planned` it
-- ends unrun. `waits_until`: the end of its debounce. `held_from`: when it was due before a pause.
--
-- `next`, `next_id`: due time and id of what was scheduled while a handler has the key. `payload`,
-- `tag`, `planned`, `expires` and `waits_until` are those of that timer then. If it was cancelled,
-- `next` alone is null: the row ends with the run.
--
-- Part of each page is free, so that a renewal stays in its page and changes no index.
CREATE TABLE tickwheel.timer (
    due bigint NOT NULL,
    id bigint NOT NULL,
    claim bigint NOT NULL DEFAULT 0,
    until bigint NOT NULL DEFAULT 0,
    attempts int NOT NULL DEFAULT 0,
    crashes int NOT NULL DEFAULT 0,
    cancelled boolean NOT NULL DEFAULT false,
    space text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    payload bytea NOT NULL,
    tag text COLLATE "C",
    planned bigint,
    expires bigint,
    waits_until bigint,
    held_from bigint,
    next bigint,
    next_id bigint,
    died bigint,
    reason text,
    former text COLLATE "C",
    PRIMARY KEY (space, name)
) WITH (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_insert_scale_factor = 0.1,
    autovacuum_analyze_scale_factor = 0.05
);
-- Each lookup is by a name, or fits one of these alone: the expression keeps the planner, which may
-- know nothing of the table, from the primary key.
CREATE INDEX timer_due ON tickwheel.timer ((space || ''), due, id)
    WHERE claim <= 0 AND died IS NULL;
-- By the token, which is the time of the claim: a renewal changes no index.
CREATE INDEX timer_claim ON tickwheel.timer ((space || ''), claim) WHERE claim > 0;
CREATE INDEX timer_died ON tickwheel.timer ((space || ''), died, id) WHERE died IS NOT NULL;
CREATE INDEX timer_tag ON tickwheel.timer (tag, (space || ''), name) WHERE tag IS NOT NULL;
CREATE INDEX timer_held ON tickwheel.timer ((space || ''), name) WHERE held_from IS NOT NULL;

-- `scope`: '' for all timers of the namespace, or 't' and a tag.
CREATE TABLE tickwheel.pause (
    space text COLLATE "C" NOT NULL,
    scope text COLLATE "C" NOT NULL,
    until bigint NOT NULL,
    PRIMARY KEY (space, scope)
);

-- What follows is for transactions of whoever speaks SQL. Each function that makes a timer
-- claimable takes the transaction's number before it reads the clock: nodes know by that below
-- which due time nothing can appear any more. A session keeps the plans of functions: one that was
-- made while the table was empty would read all of it.

-- Wakes the nodes, unless the session has switched that off or their queue fills up.
CREATE FUNCTION tickwheel.tell(namespace text, due bigint, id bigint) RETURNS void
LANGUAGE sql AS $$
    SELECT pg_notify('tickwheel', due || ' ' || id || ' ' || namespace)
    WHERE due < tickwheel.clock() + 1500000 AND pg_notification_queue_usage() < 0.5
    AND current_setting('tickwheel_notices.enabled', true) IS DISTINCT FROM 'off'
$$;

-- When this is, by clock(): what has passed is due now.
CREATE FUNCTION tickwheel.moment(due timestamptz) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF isfinite(due) IS NOT TRUE THEN
        RAISE EXCEPTION 'a time is null or infinite';
    END IF;
    PERFORM pg_current_xact_id();
    RETURN greatest(least(ceil(extract(epoch FROM due) * 1000000), 100000000000000000)::bigint,
        tickwheel.clock());
END $$;

-- Schedules a timer, in place of the key's former one; returns whether there was one. It ends unrun
-- if no handler has begun with it so long after it was due.
CREATE FUNCTION tickwheel.schedule(
    namespace text, key text, due timestamptz, payload bytea, tag text DEFAULT NULL,
    expires_after interval DEFAULT NULL
) RETURNS boolean LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    number bigint := ('x' || substr(md5(gen_random_uuid()::text), 1, 16))::bit(63)::bigint;
    at bigint := tickwheel.moment(schedule.due);
    meant bigint := ceil(extract(epoch FROM schedule.due) * 1000000)::bigint;
    row_name text := coalesce('k' || schedule.key,
        'i' || lpad(to_hex(tickwheel.clock()), 14, '0') || lpad(to_hex(number), 16, '0'));
    replaced boolean;
    waits boolean;
BEGIN
    IF namespace IS NULL THEN
        RAISE EXCEPTION 'a namespace is null';
    END IF;
    IF octet_length(schedule.payload) > 1048576 OR octet_length(schedule.tag) > 512
        OR octet_length(schedule.key) > 512 OR octet_length(namespace) > 512 THEN
        RAISE EXCEPTION 'a payload is over 1 MiB, or a namespace, key or tag over 512 bytes';
    END IF;
    INSERT INTO tickwheel.timer AS t (space, name, due, id, payload, tag, planned, expires)
        VALUES (namespace, row_name, at, number, schedule.payload, schedule.tag,
            CASE WHEN meant < at THEN greatest(meant, 0) END,
            CASE WHEN expires_after IS NOT NULL
                THEN least(greatest(extract(epoch FROM expires_after), 0) * 1000000, 1e17) END)
        ON CONFLICT (space, name) DO UPDATE SET
            due = CASE WHEN t.claim > 0 THEN t.due ELSE excluded.due END,
            id = CASE WHEN t.claim > 0 THEN t.id ELSE excluded.id END,
            next = CASE WHEN t.claim > 0 THEN excluded.due END,
            next_id = CASE WHEN t.claim > 0 THEN excluded.id END,
            attempts = CASE WHEN t.claim > 0 THEN t.attempts ELSE 0 END,
            crashes = CASE WHEN t.claim > 0 THEN t.crashes ELSE 0 END,
            cancelled = t.claim > 0 AND t.cancelled,
            payload = excluded.payload, tag = excluded.tag, planned = excluded.planned,
            expires = excluded.expires, waits_until = NULL, held_from = NULL
        RETURNING t.xmax <> 0, t.claim > 0 INTO replaced, waits;
    IF NOT waits THEN
        PERFORM tickwheel.tell(namespace, at, number);
    END IF;
    RETURN replaced;
END $$;

-- Locks a key's row, waiting for who has it; null if the key has none. What was deleted or renamed
-- meanwhile may be there again: the next look has a snapshot of its own.
CREATE FUNCTION tickwheel.locked(namespace text, key text) RETURNS tickwheel.timer
LANGUAGE plpgsql SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
    found_row tickwheel.timer;
BEGIN
    IF namespace IS NULL OR locked.key IS NULL THEN
        RAISE EXCEPTION 'a namespace or a key is null';
    END IF;
    LOOP
        SELECT t.* INTO found_row FROM tickwheel.timer t
            WHERE t.space = namespace AND t.name = 'k' || locked.key FOR UPDATE;
        IF FOUND THEN RETURN found_row; END IF;
        PERFORM FROM tickwheel.timer t WHERE t.space = namespace AND t.name = 'k' || locked.key;
        IF NOT FOUND THEN RETURN NULL; END IF;
    END LOOP;
END $$;

-- Cancels a key's timer: 'cancelled', 'running' or 'unknown'.
CREATE FUNCTION tickwheel.cancel(namespace text, key text) RETURNS text LANGUAGE plpgsql
SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
    own tickwheel.timer := tickwheel.locked(namespace, cancel.key);
BEGIN
    IF own.name IS NULL THEN RETURN 'unknown'; END IF;
    IF own.next IS NOT NULL THEN
        UPDATE tickwheel.timer SET next = NULL, payload = '', tag = NULL, planned = NULL,
            expires = NULL, waits_until = NULL WHERE space = own.space AND name = own.name;
        RETURN 'cancelled';
    END IF;
    IF own.claim > 0 OR own.cancelled THEN
        UPDATE tickwheel.timer SET cancelled = true WHERE space = own.space AND name = own.name;
        RETURN 'running';
    END IF;
    DELETE FROM tickwheel.timer WHERE space = own.space AND name = own.name;
    RETURN 'cancelled';
END $$;

-- Moves a key's timer: 'moved', 'running' or 'unknown'.
CREATE FUNCTION tickwheel.touch(namespace text, key text, due timestamptz) RETURNS text
LANGUAGE plpgsql SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
    at bigint := tickwheel.moment(touch.due);
    meant bigint := ceil(extract(epoch FROM touch.due) * 1000000)::bigint;
    own tickwheel.timer := tickwheel.locked(namespace, touch.key);
BEGIN
    IF own.name IS NULL THEN RETURN 'unknown'; END IF;
    IF (CASE WHEN own.claim > 0 THEN own.next IS NULL ELSE own.cancelled END) THEN
        RETURN 'running';
    END IF;
    UPDATE tickwheel.timer SET
        due = CASE WHEN own.claim > 0 THEN own.due ELSE at END,
        next = CASE WHEN own.claim > 0 THEN at END,
        planned = CASE WHEN meant < at THEN greatest(meant, 0) END,
        held_from = NULL
        WHERE space = own.space AND name = own.name;
    IF own.claim <= 0 THEN
        PERFORM tickwheel.tell(namespace, at, own.id);
    END IF;
    RETURN 'moved';
END $$;

-- Ends a handler's claim as done, together with its effect. Fails if the timer is another's.
CREATE FUNCTION tickwheel.ack(namespace text, name text, claim bigint) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
    own tickwheel.timer;
    number xid8 := pg_current_xact_id();
    now bigint := tickwheel.clock();
BEGIN
    SELECT t.* INTO own FROM tickwheel.timer t
        WHERE t.space = namespace AND t.name = ack.name FOR UPDATE;
    IF (own.claim > 0 AND own.claim = ack.claim) IS NOT TRUE THEN
        RAISE EXCEPTION 'the timer is another''s by now, or has ended' USING ERRCODE = 'TW001';
    END IF;
    IF own.next IS NULL THEN
        DELETE FROM tickwheel.timer t WHERE t.space = namespace AND t.name = ack.name;
        RETURN;
    END IF;
    UPDATE tickwheel.timer t SET due = greatest(own.next, now), id = own.next_id,
        planned = CASE WHEN own.next < now THEN coalesce(own.planned, own.next)
            ELSE own.planned END,
        next = NULL, next_id = NULL, claim = -own.claim, attempts = 0, crashes = 0,
        cancelled = false
        WHERE t.space = namespace AND t.name = ack.name;
    PERFORM tickwheel.tell(namespace, greatest(own.next, now), own.next_id);
END $$;
