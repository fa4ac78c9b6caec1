-- Version 7. Plain SQL is told why it is refused, and draws numbers as nodes do, none of which is
-- negative. A page of dead timers has its order in an index.
SET LOCAL lock_timeout = '1500ms';
CREATE INDEX dead_died ON tickwheel.dead ((slot / 1024), died, slot, id);

CREATE OR REPLACE FUNCTION tickwheel.slot_of(namespace text, key text) RETURNS int
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
    IF key IS NULL THEN
        RAISE EXCEPTION 'a key is null';
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
        IF NOT EXISTS (SELECT FROM tickwheel.namespace n WHERE n.name = slot_of.namespace) THEN
            RAISE EXCEPTION 'there is no namespace %', namespace;
        END IF;
        RAISE EXCEPTION 'the key''s slot of namespace % is not served here', namespace;
    END IF;
    RETURN first;
END $$;

CREATE OR REPLACE FUNCTION tickwheel.moment(due timestamptz) RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF isfinite(due) IS NOT TRUE THEN
        RAISE EXCEPTION 'a time is null or infinite';
    END IF;
    RETURN greatest(least(ceil(extract(epoch FROM due) * 1000000), 100000000000000000)::bigint,
        tickwheel.clock());
END $$;

DO $$ BEGIN
    EXECUTE replace(pg_get_functiondef('tickwheel.schedule'::regproc), 'bit(64)', 'bit(63)');
END $$;
