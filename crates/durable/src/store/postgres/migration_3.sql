-- What version 3 adds: timers that were claimed together as a process went down are told apart.

-- Others wait behind who waits for a whole table: where somebody's transaction has written timers
-- for longer, this fails, and nothing has changed.
SET LOCAL lock_timeout = '1500ms';
-- In how many crashes it was beside others; attempts that are not its own.
ALTER TABLE tickwheel.timer ADD COLUMN crashes int NOT NULL DEFAULT 0;
