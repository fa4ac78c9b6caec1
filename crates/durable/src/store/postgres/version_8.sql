-- Version 8. A table without a key refuses updates where changes are published. A namespace lies
-- on one primary. The step fails, and changes nothing, if a transaction locks a table for longer.
SET LOCAL lock_timeout = '1500ms';
ALTER TABLE tickwheel.version ADD PRIMARY KEY (version);
ALTER TABLE tickwheel.pause ADD COLUMN number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY;
CREATE INDEX pause_tag ON tickwheel.pause (namespace, tag);

DO $$ BEGIN
    IF EXISTS (SELECT FROM tickwheel.slot WHERE served <> 0) THEN
        RAISE EXCEPTION 'slots have moved: move them all back, by nodes of version 7';
    END IF;
END $$;
ALTER TABLE tickwheel.slot ADD CHECK (served = 0), DROP COLUMN IF EXISTS moves_to;
DROP TABLE IF EXISTS tickwheel.identity;

-- The slot of a key: the low ten bits of its FNV-1a, which follow from low bits alone.
CREATE OR REPLACE FUNCTION tickwheel.slot_of(namespace text, key text) RETURNS int
LANGUAGE plpgsql AS $$
DECLARE
    bytes bytea := convert_to(key, 'UTF8');
    hash int := 805;
    first int;
BEGIN
    IF key IS NULL THEN
        RAISE EXCEPTION 'a key is null';
    END IF;
    IF octet_length(bytes) > 512 THEN
        RAISE EXCEPTION 'a key is longer than 512 bytes';
    END IF;
    FOR i IN 0 .. octet_length(bytes) - 1 LOOP
        hash := ((hash # get_byte(bytes, i)) * 435) & 1023;
    END LOOP;
    SELECT s.slot INTO first FROM tickwheel.namespace n
        JOIN tickwheel.slot s ON s.slot = 1024 * n.id + hash WHERE n.name = slot_of.namespace;
    IF first IS NULL THEN
        RAISE EXCEPTION 'there is no namespace %, or it has lost slots', namespace;
    END IF;
    RETURN first;
END $$;

-- Ends a timer that a handler has, in the transaction of its effect. Refused, so that the effect is
-- rolled back, where the timer is another's by now, or has ended.
CREATE FUNCTION tickwheel.ack(namespace text, partition int, due bigint, id bigint, epoch bigint)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM tickwheel.timer t
        WHERE t.slot = (SELECT 1024 * n.id + ack.partition FROM tickwheel.namespace n
            WHERE n.name = ack.namespace)
        AND t.due = ack.due AND t.id = ack.id AND t.claim = ack.epoch AND t.claim <> 0;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the timer is another''s by now, or has ended' USING ERRCODE = 'TW001';
    END IF;
END $$;
