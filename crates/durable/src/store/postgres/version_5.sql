-- Version 5. When a timer died; nodes of version 4 do not say it.
SET LOCAL lock_timeout = '1500ms';
ALTER TABLE tickwheel.dead ADD COLUMN died bigint NOT NULL DEFAULT tickwheel.clock();

-- Timers inside a transaction of whoever speaks SQL. Nodes do not call what follows.

-- The slot of a key: the low ten bits of its FNV-1a, which follow from low bits alone.
CREATE FUNCTION tickwheel.slot_of(namespace text, key text) RETURNS int
LANGUAGE plpgsql AS $$
DECLARE
    bytes bytea := convert_to(key, 'UTF8');
    hash int := 805;
    first int;
BEGIN
    -- One that is older than its transaction's others might not see that the slot has moved.
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'timers need a transaction that is read committed';
    END IF;
    IF octet_length(bytes) > 512 THEN
        RAISE EXCEPTION 'a key is longer than 512 bytes';
    END IF;
    FOR i IN 0 .. octet_length(bytes) - 1 LOOP
        hash := ((hash # get_byte(bytes, i)) * 435) & 1023;
    END LOOP;
    -- With the lock of one who writes, no slot is closed until the transaction ends.
    LOCK TABLE tickwheel.timer IN ROW EXCLUSIVE MODE;
    SELECT s.slot INTO first FROM tickwheel.namespace n JOIN tickwheel.slot s
        ON s.slot = 1024 * n.id + hash AND s.served = 0 WHERE n.name = slot_of.namespace;
    IF first IS NULL THEN
        RAISE EXCEPTION 'the key''s slot of namespace % is not served here', namespace;
    END IF;
    RETURN first;
END $$;

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
CREATE FUNCTION tickwheel.moment(due timestamptz) RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT greatest(least(ceil(extract(epoch FROM $1) * 1000000), 100000000000000000)::bigint,
        tickwheel.clock()) $$;

-- Schedules a timer, in place of the key's former one; returns whether there was one.
CREATE FUNCTION tickwheel.schedule(
    namespace text, key text, due timestamptz, payload bytea, tag text DEFAULT NULL
) RETURNS boolean LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    number bigint := ('x' || substr(md5(gen_random_uuid()::text), 1, 16))::bit(64)::bigint;
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
            claim = 0, attempts = 0, crashes = 0, cancelled = false
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
    UPDATE tickwheel.timer SET due = at WHERE slot = place AND key = touch.key AND claim = 0
        RETURNING id INTO number;
    IF FOUND THEN
        PERFORM tickwheel.tell(place, at, number);
        RETURN 'moved';
    END IF;
    PERFORM FROM tickwheel.timer WHERE slot = place AND key = touch.key;
    RETURN CASE WHEN FOUND THEN 'running' ELSE 'unknown' END;
END $$;
