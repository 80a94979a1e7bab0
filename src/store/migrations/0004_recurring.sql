-- Recurring jobs: what their owners want, and where their randomness stands.
CREATE TABLE recurring_jobs (
    id         INTEGER PRIMARY KEY,
    name       TEXT UNIQUE NOT NULL,
    terms      TEXT NOT NULL, -- JSON
    generator  TEXT NOT NULL, -- JSON; changes with the trial that it chose
    created_us BIGINT NOT NULL
);

-- Their trials, numbered from 1 within each job. A job's trials are always read together, so that all of a trial is one
-- value; beside it stands what is asked for across jobs.
CREATE TABLE recurring_trials (
    job         BIGINT NOT NULL REFERENCES recurring_jobs (id) ON DELETE CASCADE,
    number      BIGINT NOT NULL CHECK (number > 0),
    state       TEXT NOT NULL,
    lease_us    BIGINT NOT NULL, -- while it runs, this counts and not what run says
    request_key TEXT,
    run         TEXT NOT NULL, -- JSON
    PRIMARY KEY (job, number)
) WITHOUT ROWID;
CREATE INDEX recurring_running ON recurring_trials (job, lease_us) WHERE state = 'running';
CREATE UNIQUE INDEX recurring_keys ON recurring_trials (job, request_key) WHERE request_key IS NOT NULL;
