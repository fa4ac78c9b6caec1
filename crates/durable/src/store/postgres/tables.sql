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

-- What follows is for transactions of whoever speaks SQL.

-- Wakes the nodes of this schema, unless the session has switched that off or their queue fills up.
CREATE FUNCTION tickwheel.tell(namespace text, due bigint, id bigint) RETURNS void
LANGUAGE sql AS $$
    SELECT pg_notify('tickwheel', due || ' ' || id || ' tickwheel.' || namespace)
    WHERE due < tickwheel.clock() + 1500000 AND pg_notification_queue_usage() < 0.5
    AND current_setting('tickwheel_notices.enabled', true) IS DISTINCT FROM 'off'
$$;

-- Microseconds since 1970: a part of one counts as a whole one.
CREATE FUNCTION tickwheel.moment(due timestamptz) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    IF isfinite(due) IS NOT TRUE THEN
        RAISE EXCEPTION 'a time is null or infinite';
    END IF;
    RETURN least(greatest(ceil(extract(epoch FROM due) * 1000000), 0), 100000000000000000);
END $$;

-- A key's row.
CREATE FUNCTION tickwheel.names(namespace text, key text) RETURNS text[] LANGUAGE plpgsql AS $$
BEGIN
    IF namespace IS NULL OR key IS NULL THEN
        RAISE EXCEPTION 'a namespace or a key is null';
    END IF;
    RETURN ARRAY['k' || key];
END $$;

-- Schedules a timer, in place of the key's former one; returns whether there was one. It ends unrun
-- if no handler has begun with it so long after it was due.
CREATE FUNCTION tickwheel.schedule(
    namespace text, key text, due timestamptz, payload bytea, tag text DEFAULT NULL,
    expires_after interval DEFAULT NULL
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    number bigint := hashtextextended(gen_random_uuid()::text, 0) & 9223372036854775807;
    at bigint := tickwheel.moment(due);
    row_name text := coalesce('k' || key,
        'i' || lpad(to_hex(tickwheel.clock()), 14, '0') || lpad(to_hex(number), 16, '0'));
    after bigint := least(greatest(extract(epoch FROM expires_after), 0) * 1000000, 1e17);
BEGIN
    IF namespace IS NULL THEN
        RAISE EXCEPTION 'a namespace is null';
    END IF;
    -- Nodes read UTF-8: what a database of another encoding lacks there would stop each claim.
    PERFORM convert_to(concat(namespace, key, tag), 'UTF8');
    IF octet_length(payload) > 1048576 OR octet_length(tag) > 512 OR octet_length(key) > 512
        OR octet_length(namespace) > 512 THEN
        RAISE EXCEPTION 'a payload is over 1 MiB, or a namespace, key or tag over 512 bytes';
    END IF;
    RETURN (SELECT b.answer = 2 FROM tickwheel.schedule_batch(namespace, ARRAY[row_name],
        ARRAY[number], ARRAY[at], '{0}', ARRAY[at], '{NULL}',
        ARRAY[CASE WHEN expires_after IS NOT NULL THEN after END], ARRAY[tag], ARRAY[payload],
        '{}', NULL, true) b WHERE b.answer > 0);
END $$;

-- Cancels a key's timer: 'cancelled', 'running' or 'unknown'.
CREATE FUNCTION tickwheel.cancel(namespace text, key text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    own text[] := tickwheel.names(namespace, key);
    answer text;
BEGIN
    SELECT CASE WHEN NOT b.answer THEN 'unknown' WHEN b.payload IS NULL THEN 'running'
        ELSE 'cancelled' END
        INTO answer FROM tickwheel.cancel_batch(namespace, own, true) b WHERE b.number = 1;
    RETURN answer;
END $$;

-- Moves a key's timer: 'moved', 'running' or 'unknown'.
CREATE FUNCTION tickwheel.touch(namespace text, key text, due timestamptz) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    at bigint := tickwheel.moment(due);
    own text[] := tickwheel.names(namespace, key);
    answer int;
BEGIN
    SELECT b.answer INTO answer FROM tickwheel.touch_batch(namespace, own, ARRAY[at], '{0}',
        ARRAY[at], true, true) b WHERE b.number = 1;
    RETURN (ARRAY['moved', 'running', 'unknown'])[answer];
END $$;

-- Ends a handler's claim as done, together with its effect. Fails if the timer is another's.
CREATE FUNCTION tickwheel.ack(namespace text, name text, claim bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    own record;
BEGIN
    SELECT b.* INTO own FROM tickwheel.ack_batch(namespace, ARRAY[name], ARRAY[claim], '{0}', '{0}',
        '{0}', '{NULL}', '{NULL}', '{NULL}', true) b WHERE b.number = 1;
    IF own.answer IS NOT TRUE THEN
        RAISE EXCEPTION 'the timer is another''s by now, or has ended' USING ERRCODE = 'TW001';
    END IF;
    -- What waits for the end of the run.
    PERFORM tickwheel.tell(namespace, own.due, own.id);
END $$;
