-- Version 6. `until`: up to when a debounce may put a timer off. `planned`: when it was due before
-- it was put off by a pause or a retry.
SET LOCAL lock_timeout = '1500ms';
ALTER TABLE tickwheel.timer ADD COLUMN until bigint, ADD COLUMN planned bigint;

-- Pauses of namespaces, or of tags. `moments`: those to which timers were put off.
CREATE TABLE tickwheel.pause (
    namespace int NOT NULL,
    tag text,
    until bigint NOT NULL,
    moments bigint[] NOT NULL
);

CREATE INDEX dead_tag ON tickwheel.dead (tag, slot) WHERE tag IS NOT NULL;

-- What replaces a timer ends its debounce, and what moves it says when it is due.
DO $$ BEGIN
    EXECUTE replace(pg_get_functiondef('tickwheel.schedule'::regproc),
        'cancelled = false', 'cancelled = false, until = NULL, planned = NULL');
    EXECUTE replace(pg_get_functiondef('tickwheel.touch'::regproc),
        'SET due = at', 'SET due = at, planned = NULL');
END $$;
