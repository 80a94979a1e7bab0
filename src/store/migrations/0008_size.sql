-- Lines of settlements and closes are kept packed from here on, in the same column: streams of zlib.

-- Whether a row is in a settlement is told from its block.
DROP INDEX intervals_by_time;
CREATE INDEX intervals_by_time ON intervals (start_us, block);

-- Balances summed by the day whose blocks they are of: what is closed within ten minutes is of the hour before. Follows from
-- the closes.
CREATE TABLE balance_days (
    day_us          BIGINT NOT NULL,
    device          TEXT NOT NULL,
    counter_mj      BIGINT, -- absent without a counter
    jobs_mj         BIGINT NOT NULL,
    idle_mj         BIGINT NOT NULL,
    unattributed_mj BIGINT NOT NULL,
    integrated_mj   BIGINT NOT NULL,
    unequal         BIGINT NOT NULL, -- blocks that differ
    difference_mj   BIGINT NOT NULL,
    PRIMARY KEY (day_us, device)
) WITHOUT ROWID;
INSERT INTO balance_days
SELECT (at_us - 600000001) / 86400000000 * 86400000000, device, SUM(counter_mj), SUM(jobs_mj), SUM(idle_mj),
    SUM(unattributed_mj), SUM(integrated_mj), SUM(difference_mj <> 0), SUM(difference_mj)
FROM balances GROUP BY 1, 2;
CREATE INDEX balances_by_time ON balances (at_us);

-- Nothing asks for a job's days.
DROP INDEX day_totals_by_job;
