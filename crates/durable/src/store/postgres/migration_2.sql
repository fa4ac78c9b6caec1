-- What version 2 adds: a namespace may lie on several primaries, each of which serves some slots.

-- 0: served here. 1: closed, its timers are being moved to another primary. 2: served elsewhere.
ALTER TABLE tickwheel.slot ADD COLUMN served smallint NOT NULL DEFAULT 0;
-- The identity of the primary that a closed slot is moved to.
ALTER TABLE tickwheel.slot ADD COLUMN moves_to text;

-- Tells this primary from others.
CREATE TABLE tickwheel.identity (id text NOT NULL);
INSERT INTO tickwheel.identity VALUES (gen_random_uuid()::text);
