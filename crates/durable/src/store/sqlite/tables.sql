-- Rows lie in the order of claims, the dead after the others. `name`: `k` and a key; `i` and a
-- number, without a key; `d` and an id once dead. `due`: of the dead, when the timer died.
-- `claim`: the token of who has the row; otherwise minus the last token. `until`: when a claim
-- ends; it has a value before, so that a claim leaves the row's length. `cancelled`: while claimed.
-- While a row is claimed whose key was scheduled again, `next` and `next_id` are the waiting
-- timer's `due` and `id`, and `tag` to `waits_until` and `payload` are the waiting timer's too;
-- without a `next` that timer was cancelled. `held_from`: when the timer was due before a pause put
-- it off. The long columns are last: a row is read up to what is asked for.
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
-- A pause without a tag is one of all timers.
CREATE TABLE tickwheel_pause (tag TEXT, until INTEGER NOT NULL) STRICT;
CREATE INDEX tickwheel_pause_tag ON tickwheel_pause (tag);
-- Has one row.
CREATE TABLE tickwheel_version (version INTEGER NOT NULL) STRICT;
