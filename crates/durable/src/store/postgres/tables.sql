-- The tables, as version 7 made them. Version 8 changes them. Times are microseconds since 1970, by
-- clock().

-- The one clock: inlined by the planner, and read when a row is looked at.
CREATE FUNCTION tickwheel.clock() RETURNS bigint LANGUAGE sql VOLATILE AS
    $$ SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint $$;

CREATE TABLE tickwheel.namespace (
    id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL UNIQUE
);

-- A node, as long as its lease lasts. A node that `rests` owns nothing, and is notified of written
-- timers that are due before its horizon. Half of each page is free: renewals stay in theirs.
CREATE TABLE tickwheel.member (
    node bigint PRIMARY KEY,
    namespace int NOT NULL,
    lease bigint NOT NULL,
    lease_until bigint NOT NULL,
    horizon bigint NOT NULL DEFAULT 0,
    rests boolean NOT NULL DEFAULT false
) WITH (fillfactor = 50);

-- Who owns which slot. An owner that is no member owns nothing. `served` is always 0, and goes in a
-- later version: nodes of version 7 read it.
CREATE TABLE tickwheel.slot (
    slot int PRIMARY KEY,
    owner bigint,
    epoch bigint NOT NULL DEFAULT 0,
    served smallint NOT NULL DEFAULT 0
) WITH (fillfactor = 50);

-- A claim rewrites its row: a quarter of each page is free, so that it stays in its page and no
-- index changes. `crashes`: those beside other timers. `cancelled`: while claimed, so the timer
-- ends with that run. `until`: up to when a debounce may put the timer off. `planned`: when the
-- timer was due before a pause or a retry put it off.
CREATE TABLE tickwheel.timer (
    slot int NOT NULL,
    attempts int NOT NULL DEFAULT 0,
    due bigint NOT NULL,
    id bigint NOT NULL,
    claim bigint NOT NULL DEFAULT 0,
    key text,
    tag text,
    payload bytea NOT NULL,
    crashes int NOT NULL DEFAULT 0,
    cancelled boolean NOT NULL DEFAULT false,
    until bigint,
    planned bigint,
    PRIMARY KEY (slot, due, id)
) WITH (
    fillfactor = 75,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_insert_scale_factor = 0.1,
    autovacuum_analyze_scale_factor = 0.05
);
CREATE UNIQUE INDEX timer_key ON tickwheel.timer (slot, key) WHERE key IS NOT NULL;
CREATE INDEX timer_tag ON tickwheel.timer (tag, slot) WHERE tag IS NOT NULL;

-- Hints: a crash may empty it.
CREATE UNLOGGED TABLE tickwheel.inbox (
    node bigint NOT NULL,
    written bigint NOT NULL,
    slot int NOT NULL,
    due bigint NOT NULL,
    id bigint NOT NULL
);
CREATE INDEX inbox_node ON tickwheel.inbox (node, written);

CREATE TABLE tickwheel.dead (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    slot int NOT NULL,
    attempts int NOT NULL,
    id bigint NOT NULL,
    key text,
    tag text,
    payload bytea NOT NULL,
    reason text NOT NULL,
    died bigint NOT NULL DEFAULT tickwheel.clock()
);
CREATE INDEX dead_id ON tickwheel.dead (id);
CREATE INDEX dead_tag ON tickwheel.dead (tag, slot) WHERE tag IS NOT NULL;
CREATE INDEX dead_died ON tickwheel.dead ((slot / 1024), died, slot, id);

-- Pauses of namespaces, or of tags. `moments`: those to which timers were put off.
CREATE TABLE tickwheel.pause (
    namespace int NOT NULL,
    tag text,
    until bigint NOT NULL,
    moments bigint[] NOT NULL
);

-- Timers inside a transaction of whoever speaks SQL. Nodes do not call what follows.

-- Tells the owner of a slot, and those who rest, of a timer there.
CREATE FUNCTION tickwheel.tell(slot int, due bigint, id bigint) RETURNS void
LANGUAGE sql AS $$
    INSERT INTO tickwheel.inbox (node, written, slot, due, id)
        SELECT m.node, tickwheel.clock(), $1, $2, $3 FROM tickwheel.slot s
        JOIN tickwheel.member m ON m.node = s.owner WHERE s.slot = $1 AND $2 < m.horizon;
    SELECT pg_notify('tickwheel_' || m.namespace, '') FROM tickwheel.member m
        WHERE m.rests AND m.namespace = $1 / 1024 AND $2 < m.horizon;
$$;

-- When this is, by clock(): what has passed is due now.
CREATE FUNCTION tickwheel.moment(due timestamptz) RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF isfinite(due) IS NOT TRUE THEN
        RAISE EXCEPTION 'a time is null or infinite';
    END IF;
    RETURN greatest(least(ceil(extract(epoch FROM due) * 1000000), 100000000000000000)::bigint,
        tickwheel.clock());
END $$;

-- Schedules a timer, in place of the key's former one; returns whether there was one.
CREATE FUNCTION tickwheel.schedule(
    namespace text, key text, due timestamptz, payload bytea, tag text DEFAULT NULL
) RETURNS boolean LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    number bigint := ('x' || substr(md5(gen_random_uuid()::text), 1, 16))::bit(63)::bigint;
    place int := tickwheel.slot_of(namespace, coalesce(schedule.key, number::text));
    at bigint := tickwheel.moment(schedule.due);
    replaced boolean;
BEGIN
    IF octet_length(schedule.payload) > 1048576 OR octet_length(schedule.tag) > 512 THEN
        RAISE EXCEPTION 'a payload is longer than 1 MiB, or a tag than 512 bytes';
    END IF;
    INSERT INTO tickwheel.timer AS t (slot, due, id, key, tag, payload)
        VALUES (place, at, number, schedule.key, schedule.tag, schedule.payload)
        ON CONFLICT (slot, key) WHERE key IS NOT NULL DO UPDATE
        SET due = excluded.due, id = excluded.id, tag = excluded.tag, payload = excluded.payload,
            claim = 0, attempts = 0, crashes = 0, cancelled = false, until = NULL, planned = NULL
        RETURNING t.xmax <> 0 INTO replaced;
    PERFORM tickwheel.tell(place, at, number);
    RETURN replaced;
END $$;

-- Cancels a key's timer: 'cancelled', 'running' or 'unknown'.
CREATE FUNCTION tickwheel.cancel(namespace text, key text) RETURNS text LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    place int := tickwheel.slot_of(namespace, cancel.key);
BEGIN
    DELETE FROM tickwheel.timer WHERE slot = place AND key = cancel.key AND claim = 0;
    IF FOUND THEN RETURN 'cancelled'; END IF;
    UPDATE tickwheel.timer SET cancelled = true WHERE slot = place AND key = cancel.key;
    RETURN CASE WHEN FOUND THEN 'running' ELSE 'unknown' END;
END $$;

-- Moves a key's timer: 'moved', 'running' or 'unknown'.
CREATE FUNCTION tickwheel.touch(namespace text, key text, due timestamptz) RETURNS text
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    place int := tickwheel.slot_of(namespace, touch.key);
    at bigint := tickwheel.moment(touch.due);
    number bigint;
BEGIN
    UPDATE tickwheel.timer SET due = at, planned = NULL
        WHERE slot = place AND key = touch.key AND claim = 0
        RETURNING id INTO number;
    IF FOUND THEN
        PERFORM tickwheel.tell(place, at, number);
        RETURN 'moved';
    END IF;
    PERFORM FROM tickwheel.timer WHERE slot = place AND key = touch.key;
    RETURN CASE WHEN FOUND THEN 'running' ELSE 'unknown' END;
END $$;
