-- The tables: one of timers, and one of pauses. Times are microseconds since 1970, by clock().

-- Returns the store's time. The planner inlines the function, and each row reads the clock anew.
CREATE FUNCTION tickwheel.clock() RETURNS bigint LANGUAGE sql VOLATILE AS
    $$ SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint $$;

-- `name`: 'k' and the key; 'i' and a number if the timer has no key; 'd' and the timer's id in hex
-- if the timer is dead. `claim`: the token of the claim; minus the last token if no handler has the
-- timer. `until`: when the claim runs out. `attempts`: claims, as far as they count. `crashes`:
-- claims that ran out. `cancelled`: the timer ends with its run. `planned`: the first due time;
-- null if it is `due`. `expires`: how long after `planned` the timer ends unrun. `waits_until`: the
-- end of the debounce. `held_from`: the due time before a pause put the timer off. `died`,
-- `reason`, `former`: when and why a dead timer was given up, and its name before.
--
-- `next` and `next_id`: the due time and id of a timer that was scheduled while a handler has the
-- key. `payload`, `tag`, `planned`, `expires` and `waits_until` belong to that timer then. If that
-- timer was cancelled, `next` is null and `next_id` is not: the row ends with the run.
--
-- Part of each page is free, so that a renewed row stays in its page and no index changes.
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
-- Each statement finds rows by their names, or fits exactly one of these indexes. The expression
-- keeps the planner from the primary key, which it would take for a table that it knows nothing of.
CREATE INDEX timer_due ON tickwheel.timer ((space || ''), due, id)
    WHERE claim <= 0 AND died IS NULL;
-- Ordered by the token, which is the time of the claim and stays in a renewal: by `until`, each
-- renewal would change the index.
CREATE INDEX timer_claim ON tickwheel.timer ((space || ''), claim) WHERE claim > 0;
CREATE INDEX timer_died ON tickwheel.timer ((space || ''), died, id) WHERE died IS NOT NULL;
CREATE INDEX timer_tag ON tickwheel.timer (tag, (space || ''), name) WHERE tag IS NOT NULL;
CREATE INDEX timer_held ON tickwheel.timer ((space || ''), name) WHERE held_from IS NOT NULL;
CREATE INDEX timer_held_tag ON tickwheel.timer ((tag || ''), (space || ''), name)
    WHERE coalesce(held_from, -1) >= 0;

-- Pauses. `scope`: '' for all timers of the namespace, or 't' and a tag.
CREATE TABLE tickwheel.pause (
    space text COLLATE "C" NOT NULL,
    scope text COLLATE "C" NOT NULL,
    until bigint NOT NULL,
    PRIMARY KEY (space, scope)
);

-- The functions below are for users' own transactions: `sql.md` describes them. They set the path
-- of names, as nodes do: by another path, somebody else's function could run in place of the
-- server's.

-- Wakes the nodes of this schema for a timer that is due soon, unless the session has switched
-- notices off or the server's queue of notices is half full: commits fail once it is full.
CREATE FUNCTION tickwheel.tell(namespace text, due bigint, id bigint) RETURNS void
LANGUAGE sql AS $$
    SELECT pg_notify('tickwheel', due || ' ' || id || ' tickwheel.' || namespace)
    WHERE due < tickwheel.clock() + 1500000 AND pg_notification_queue_usage() < 0.5
    AND current_setting('tickwheel_notices.enabled', true) IS DISTINCT FROM 'off'
$$;

-- Returns the microseconds since 1970, rounded up: no timer fires early.
CREATE FUNCTION tickwheel.moment(due timestamptz) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    IF isfinite(due) IS NOT TRUE THEN
        RAISE EXCEPTION 'a time is null or infinite';
    END IF;
    RETURN least(greatest(ceil(extract(epoch FROM due) * 1000000), 0), 100000000000000000);
END $$;

-- Returns the name of a key's row, as a batch of one.
CREATE FUNCTION tickwheel.names(namespace text, key text) RETURNS text[] LANGUAGE plpgsql AS $$
BEGIN
    IF namespace IS NULL OR key IS NULL THEN
        RAISE EXCEPTION 'a namespace or a key is null';
    END IF;
    RETURN ARRAY['k' || key];
END $$;

-- Schedules a timer in place of the key's former timer, and returns whether there was one. The
-- timer ends unrun if no handler has begun with it `expires_after` after its due time.
CREATE FUNCTION tickwheel.schedule(
    namespace text, key text, due timestamptz, payload bytea, tag text DEFAULT NULL,
    expires_after interval DEFAULT NULL
) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
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
    IF octet_length(payload) > 1048576 OR octet_length(tag) > 512 OR octet_length(key) > 512
        OR octet_length(namespace) > 512 THEN
        RAISE EXCEPTION 'a payload is over 1 MiB, or a namespace, key or tag over 512 bytes';
    END IF;
    RETURN (SELECT b.answer = 2 FROM tickwheel.schedule_batch(namespace, ARRAY[row_name],
        ARRAY[number], ARRAY[at], '{0}', ARRAY[at], ARRAY[NULL::bigint],
        ARRAY[CASE WHEN expires_after IS NOT NULL THEN after END], ARRAY[tag], ARRAY[payload],
        '{}', NULL, true) b WHERE b.answer > 0);
END $$;

-- Cancels a key's timer: 'cancelled', 'running' or 'unknown'.
CREATE FUNCTION tickwheel.cancel(namespace text, key text) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
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
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    at bigint := tickwheel.moment(due);
    own text[] := tickwheel.names(namespace, key);
    answer int;
BEGIN
    SELECT b.answer INTO answer FROM tickwheel.touch_batch(namespace, own, ARRAY[at], '{0}',
        ARRAY[at], true, true) b WHERE b.number = 1;
    RETURN (ARRAY['moved', 'running', 'unknown'])[answer];
END $$;

-- Ends a handler's claim, by one of the kinds of `ack_batch`. Fails if the claim is over.
CREATE FUNCTION tickwheel.finish(
    namespace text, name text, claim bigint, kind int, at bigint, payload bytea
) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    answer boolean;
BEGIN
    SELECT b.answer INTO answer FROM tickwheel.ack_batch(namespace, ARRAY[name], ARRAY[claim],
        ARRAY[kind], ARRAY[at], '{0}', ARRAY[at], ARRAY[payload], true) b
        WHERE b.number = 1;
    IF answer IS NOT TRUE THEN
        RAISE EXCEPTION 'the timer is another''s by now, or has ended' USING ERRCODE = 'TW001';
    END IF;
END $$;

-- Ends a handler's claim as done, in the transaction of the handler's effect.
CREATE FUNCTION tickwheel.ack(namespace text, name text, claim bigint) RETURNS void
LANGUAGE sql AS $$ SELECT tickwheel.finish(namespace, name, claim, 0, 0, NULL) $$;

-- Ends a handler's claim, and makes the timer due again.
CREATE FUNCTION tickwheel.again(
    namespace text, name text, claim bigint, due timestamptz, payload bytea
) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF octet_length(payload) > 1048576 THEN
        RAISE EXCEPTION 'a payload is over 1 MiB';
    END IF;
    PERFORM tickwheel.finish(namespace, name, claim, 2, tickwheel.moment(due), payload);
END $$;
