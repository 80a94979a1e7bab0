-- The books become a ledger: rows are chained by digests, blocks of them closed, hours settled.

ALTER TABLE intervals RENAME COLUMN gpu TO device;
ALTER TABLE intervals ADD COLUMN block BIGINT NOT NULL DEFAULT 1;
ALTER TABLE intervals ADD COLUMN hash BLOB; -- SHA-256 over the chain of the block's rows up to this one
-- As it was booked, where a correction gave the row to another share since.
ALTER TABLE intervals ADD COLUMN booked_share TEXT;
ALTER TABLE intervals ADD COLUMN booked_job TEXT;
CREATE INDEX intervals_by_block ON intervals (block, id);
CREATE INDEX intervals_by_time ON intervals (start_us);
CREATE INDEX intervals_of_gaps ON intervals (start_us) WHERE source = 'counter_gap';
DROP INDEX intervals_by_gpu; -- nothing asks by board alone, and every index on minutes costs its size
CREATE INDEX intervals_unchained ON intervals (id) WHERE hash IS NULL;

-- Readings less `rebased_mj` gain what is booked from them. `base_mj` is what that was at the last close.
ALTER TABLE checkpoints RENAME COLUMN gpu TO device;
ALTER TABLE checkpoints ADD COLUMN rebased_mj BIGINT NOT NULL DEFAULT 0;
ALTER TABLE checkpoints ADD COLUMN base_mj BIGINT NOT NULL DEFAULT 0;
-- What earlier versions booked is taken as it is.
UPDATE checkpoints SET base_mj = counter_mj - (SELECT COALESCE(SUM(energy_mj), 0) FROM intervals
    WHERE intervals.device = checkpoints.device AND source <> 'integrated_power');

-- What stands in the ledger beside the intervals: written once, chained.
CREATE TABLE ledger (
    seq      INTEGER PRIMARY KEY,
    kind     TEXT NOT NULL,
    about_us BIGINT NOT NULL,
    line     TEXT NOT NULL, -- JSON
    hash     BLOB NOT NULL  -- SHA-256 over the chain of lines up to this one
);
CREATE INDEX ledger_by_kind ON ledger (kind, about_us);
CREATE TRIGGER ledger_is_not_changed BEFORE UPDATE ON ledger
    BEGIN SELECT RAISE(ABORT, 'entries of the ledger are written once'); END;
CREATE TRIGGER ledger_is_not_shortened BEFORE DELETE ON ledger
    BEGIN SELECT RAISE(ABORT, 'entries of the ledger are written once'); END;

-- Sums of rows that were rolled up, one for each hour; shares as corrected.
CREATE TABLE rolled_up (
    hour_us   BIGINT NOT NULL,
    device    TEXT NOT NULL,
    share     TEXT NOT NULL,
    job_id    TEXT NOT NULL, -- empty without a job
    source    TEXT NOT NULL,
    energy_mj BIGINT NOT NULL,
    PRIMARY KEY (hour_us, device, share, job_id, source)
) WITHOUT ROWID;
CREATE INDEX rolled_up_by_job ON rolled_up (job_id, hour_us);
CREATE INDEX rolled_up_gaps ON rolled_up (hour_us) WHERE source = 'counter_gap';

-- Each device's books against its counter, by block. Follows from the closes.
CREATE TABLE balances (
    block           BIGINT NOT NULL,
    at_us           BIGINT NOT NULL,
    device          TEXT NOT NULL,
    counter_mj      BIGINT, -- absent without a counter
    jobs_mj         BIGINT NOT NULL,
    idle_mj         BIGINT NOT NULL,
    unattributed_mj BIGINT NOT NULL,
    integrated_mj   BIGINT NOT NULL,
    difference_mj   BIGINT NOT NULL,
    PRIMARY KEY (block, device)
) WITHOUT ROWID;

-- Hours whose energy is in closed blocks and not all in a settlement yet, or was corrected since.
CREATE TABLE due (
    hour_us BIGINT PRIMARY KEY NOT NULL,
    why     TEXT NOT NULL
) WITHOUT ROWID;

-- Which settlement of an hour holds. Follows from the ledger.
CREATE TABLE settled (
    hour_us       BIGINT NOT NULL,
    book          TEXT NOT NULL,
    version       BIGINT NOT NULL,
    seq           BIGINT NOT NULL,
    through_block BIGINT NOT NULL,
    final         BOOLEAN NOT NULL,
    sources       TEXT NOT NULL, -- whose intensities, in words
    PRIMARY KEY (hour_us, book)
) WITHOUT ROWID;
CREATE INDEX settled_open ON settled (hour_us) WHERE NOT final;

-- What each version after an hour's first one changed. Follows from the ledger.
CREATE TABLE restated (
    hour_us          BIGINT NOT NULL,
    book             TEXT NOT NULL,
    version          BIGINT NOT NULL,
    at_us            BIGINT NOT NULL,
    reason           TEXT NOT NULL,
    energy_before_mj BIGINT NOT NULL,
    energy_mj        BIGINT NOT NULL,
    carbon_before_ug BIGINT NOT NULL,
    carbon_ug        BIGINT NOT NULL,
    PRIMARY KEY (hour_us, book, version)
) WITHOUT ROWID;

-- The settlements that hold, summed by day. Follows from the ledger.
CREATE TABLE day_totals (
    day_us         BIGINT NOT NULL,
    book           TEXT NOT NULL,
    device         TEXT NOT NULL,
    share          TEXT NOT NULL,
    job_id         TEXT NOT NULL, -- empty without a job
    energy_mj      BIGINT NOT NULL,
    estimated_mj   BIGINT NOT NULL,
    forecast_mj    BIGINT NOT NULL,
    provisional_mj BIGINT NOT NULL,
    final_mj       BIGINT NOT NULL,
    unknown_mj     BIGINT NOT NULL,
    carbon_ug      BIGINT NOT NULL,
    PRIMARY KEY (day_us, book, device, share, job_id)
) WITHOUT ROWID;
CREATE INDEX day_totals_by_job ON day_totals (job_id, day_us);

-- A value that its source took back: the row's value no longer holds.
ALTER TABLE intensities ADD COLUMN withdrawn BOOLEAN NOT NULL DEFAULT FALSE;
ALTER TABLE intensities ADD COLUMN provenance TEXT; -- JSON: unit, digests of what was read and more, where known
