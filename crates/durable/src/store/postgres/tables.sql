-- The tables of version 1. Times are microseconds since 1970, by clock().

-- The one clock: inlined by the planner, and read when a row is looked at.
CREATE FUNCTION tickwheel.clock() RETURNS bigint LANGUAGE sql VOLATILE AS
    $$ SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint $$;

CREATE TABLE tickwheel.namespace (
    id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL UNIQUE
);

-- A node, as long as its lease lasts. Half of each page is free: renewals stay in theirs.
CREATE TABLE tickwheel.member (
    node bigint PRIMARY KEY,
    namespace int NOT NULL,
    lease bigint NOT NULL,
    lease_until bigint NOT NULL,
    horizon bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50);

-- Who owns which slot. An owner that is no member owns nothing.
CREATE TABLE tickwheel.slot (
    slot int PRIMARY KEY,
    owner bigint,
    epoch bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50);

-- A claim rewrites its row: a quarter of each page is free, so that it stays in its page and no
-- index changes.
CREATE TABLE tickwheel.timer (
    slot int NOT NULL,
    attempts int NOT NULL DEFAULT 0,
    due bigint NOT NULL,
    id bigint NOT NULL,
    claim bigint NOT NULL DEFAULT 0,
    key text,
    tag text,
    payload bytea NOT NULL,
    PRIMARY KEY (slot, due, id)
) WITH (
    fillfactor = 75,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_insert_scale_factor = 0.1,
    autovacuum_analyze_scale_factor = 0.05
);
CREATE UNIQUE INDEX timer_key ON tickwheel.timer (slot, key) WHERE key IS NOT NULL;
CREATE INDEX timer_tag ON tickwheel.timer (tag, slot) WHERE tag IS NOT NULL;

-- Hints: a crash may empty it.
CREATE UNLOGGED TABLE tickwheel.inbox (
    node bigint NOT NULL,
    written bigint NOT NULL,
    slot int NOT NULL,
    due bigint NOT NULL,
    id bigint NOT NULL
);
CREATE INDEX inbox_node ON tickwheel.inbox (node, written);

CREATE TABLE tickwheel.dead (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    slot int NOT NULL,
    attempts int NOT NULL,
    id bigint NOT NULL,
    key text,
    tag text,
    payload bytea NOT NULL,
    reason text NOT NULL
);
CREATE INDEX dead_id ON tickwheel.dead (id);
