-- Recurring jobs: what their owners want, and where their randomness stands.
CREATE TABLE recurring_jobs (
    id         INTEGER PRIMARY KEY,
    name       TEXT UNIQUE NOT NULL,
    terms      TEXT NOT NULL, -- JSON
    generator  TEXT NOT NULL, -- JSON; changes with the trial that it chose
    created_us BIGINT NOT NULL
);

-- Their trials, numbered from 1 within each job.
CREATE TABLE recurring_trials (
    job          BIGINT NOT NULL REFERENCES recurring_jobs (id) ON DELETE CASCADE,
    number       BIGINT NOT NULL CHECK (number > 0),
    batch_size   BIGINT NOT NULL,
    kind         TEXT NOT NULL,
    state        TEXT NOT NULL,
    cost_j       DOUBLE PRECISION NOT NULL,
    epochs       BIGINT NOT NULL,
    epoch_cost_j DOUBLE PRECISION,
    energy_j     DOUBLE PRECISION NOT NULL,
    time_s       DOUBLE PRECISION NOT NULL,
    metric       DOUBLE PRECISION,
    first_epochs BIGINT,
    first_cost_j DOUBLE PRECISION,
    request_key  TEXT,
    job_id       TEXT,
    begun_us     BIGINT NOT NULL,
    lease_us     BIGINT NOT NULL,
    ended_us     BIGINT CHECK ((state = 'running') = (ended_us IS NULL)),
    reason       TEXT NOT NULL,
    PRIMARY KEY (job, number)
) WITHOUT ROWID;
CREATE INDEX recurring_running ON recurring_trials (job, lease_us) WHERE state = 'running';
CREATE UNIQUE INDEX recurring_keys ON recurring_trials (job, request_key) WHERE request_key IS NOT NULL;
