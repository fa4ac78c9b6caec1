-- Brings the tables of version 2 back to version 1, for its programs: by hand, in one transaction
-- (`psql -1 -v ON_ERROR_STOP=1 -f rollback_2.sql`), when no node of version 2 runs. It refuses
-- where slots have moved to another primary, or are about to: version 1 knows nothing of that.
DO $$ BEGIN
    IF EXISTS (SELECT FROM tickwheel.slot WHERE served <> 0) THEN
        RAISE EXCEPTION 'slots have moved: move them all back to this primary first';
    END IF;
END $$;
ALTER TABLE tickwheel.slot DROP COLUMN served, DROP COLUMN moves_to;
DROP TABLE tickwheel.identity;
UPDATE tickwheel.version SET version = 1;
