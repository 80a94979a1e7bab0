-- Times are microseconds since 1970-01-01T00:00:00Z. Energy is whole millijoules. Rows of intervals and
-- intensities are written once and never changed.

CREATE TABLE jobs (
    id            TEXT PRIMARY KEY NOT NULL,
    spec          TEXT NOT NULL, -- JSON
    progress      TEXT NOT NULL, -- JSON
    registered_us BIGINT NOT NULL,
    ended_us      BIGINT,
    end_reason    TEXT
);
CREATE INDEX jobs_open ON jobs (ended_us);

CREATE TABLE profiles (
    key        TEXT PRIMARY KEY NOT NULL, -- JSON: name, batch size, boards
    record     TEXT NOT NULL,             -- JSON: sums per setting
    updated_us BIGINT NOT NULL
);

CREATE TABLE intervals (
    id        INTEGER PRIMARY KEY,
    gpu       TEXT NOT NULL,
    share     TEXT NOT NULL CHECK (share IN ('job', 'idle', 'unattributed')),
    job_id    TEXT CHECK ((share = 'job') = (job_id IS NOT NULL)),
    start_us  BIGINT NOT NULL,
    end_us    BIGINT NOT NULL CHECK (end_us > start_us),
    energy_mj BIGINT NOT NULL CHECK (energy_mj >= 0),
    source    TEXT NOT NULL
);
CREATE INDEX intervals_by_job ON intervals (job_id, start_us);
CREATE INDEX intervals_by_gpu ON intervals (gpu, start_us);

-- The counter up to which a board's energy stands in `intervals`; changed in the same transaction.
CREATE TABLE checkpoints (
    gpu        TEXT PRIMARY KEY NOT NULL,
    counter_mj BIGINT NOT NULL,
    at_us      BIGINT NOT NULL,
    holders    TEXT NOT NULL -- JSON: ids of the jobs that held the board
);

CREATE TABLE intensities (
    id           INTEGER PRIMARY KEY,
    zone         TEXT NOT NULL,
    source       TEXT NOT NULL,
    kind         TEXT NOT NULL,
    scope        TEXT NOT NULL,
    start_us     BIGINT NOT NULL,
    end_us       BIGINT NOT NULL CHECK (end_us > start_us),
    g_per_kwh    DOUBLE PRECISION NOT NULL,
    origin       TEXT NOT NULL,
    trust        INTEGER NOT NULL, -- order of origins, the most trusted highest
    issued_us    BIGINT NOT NULL,
    retrieved_us BIGINT NOT NULL
);
CREATE INDEX intensities_by_time ON intensities (end_us, start_us);
