-- Trials that their clients took back were called lost.
UPDATE recurring_trials SET state = 'withdrawn' WHERE state = 'lost' AND reason = 'it was withdrawn';

-- The last trial's number of recurring jobs that were deleted: one that is made anew goes on from there, so that nobody
-- reports for a trial of the other.
CREATE TABLE recurring_deleted (
    name TEXT PRIMARY KEY NOT NULL,
    last BIGINT NOT NULL
) WITHOUT ROWID;
