-- Rows lie in the order of their due times, dead timers after the others. `name`: `k` and a key;
-- `i` and a number if the timer has no key; `d` and an id if the timer is dead. `due`: of a dead
-- timer, when it died. `claim`: the token of the claim; minus the last token if no handler has the
-- timer. `until`: when the claim runs out. It has a value before, so that a claim does not change
-- the length of the row. `cancelled`: the timer ends with its run. `held_from`: the due time before
-- a pause put the timer off.
--
-- `next` and `next_id`: the due time and id of a timer that was scheduled while a handler has the
-- key. `tag` to `waits_until` and `payload` belong to that timer then. If that timer was cancelled,
-- `next` is null and `next_id` is not.
--
-- The long columns are last: SQLite reads a row up to the last column that is asked for.
CREATE TABLE tickwheel_timer (
    dead INTEGER NOT NULL,
    due INTEGER NOT NULL,
    id INTEGER NOT NULL,
    name TEXT NOT NULL,
    claim INTEGER NOT NULL,
    until INTEGER NOT NULL,
    attempts INTEGER NOT NULL,
    crashes INTEGER NOT NULL,
    cancelled INTEGER NOT NULL,
    tag TEXT,
    planned INTEGER NOT NULL,
    expires INTEGER,
    waits_until INTEGER,
    held_from INTEGER,
    next INTEGER,
    next_id INTEGER,
    former TEXT,
    payload BLOB NOT NULL,
    reason TEXT,
    PRIMARY KEY (dead, due, id, name)
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX tickwheel_timer_name ON tickwheel_timer (name);
CREATE INDEX tickwheel_timer_until ON tickwheel_timer (until) WHERE claim > 0;
CREATE INDEX tickwheel_timer_tag ON tickwheel_timer (tag, name) WHERE tag IS NOT NULL AND NOT dead;
CREATE INDEX tickwheel_timer_held ON tickwheel_timer (name) WHERE held_from IS NOT NULL;
-- A pause without a tag is for all timers.
CREATE TABLE tickwheel_pause (tag TEXT, until INTEGER NOT NULL) STRICT;
-- Has one row.
CREATE TABLE tickwheel_version (version INTEGER NOT NULL) STRICT;
