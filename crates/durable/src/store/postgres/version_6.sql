-- Version 6. `until`: up to when a debounce may put a timer off.
SET LOCAL lock_timeout = '1500ms';
ALTER TABLE tickwheel.timer ADD COLUMN until bigint;

CREATE INDEX dead_tag ON tickwheel.dead (tag, slot) WHERE tag IS NOT NULL;

-- What replaces a timer ends its debounce.
DO $$ BEGIN
    EXECUTE replace(pg_get_functiondef('tickwheel.schedule'::regproc),
        'cancelled = false', 'cancelled = false, until = NULL');
END $$;
