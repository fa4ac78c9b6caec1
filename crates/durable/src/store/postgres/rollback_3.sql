-- Brings the tables of version 3 back to version 2, for its programs: by hand, in one transaction
-- (`psql -1 -v ON_ERROR_STOP=1 -f rollback_3.sql`), when no node of version 3 runs.
ALTER TABLE tickwheel.timer DROP COLUMN crashes;
UPDATE tickwheel.version SET version = 2;
