-- UTC days on which a daemon ran, in the order in which they came, each with the numbers of what came first in it. These
-- numbers decide what is old: by the clock, one start with a wrong date would make everything old.
CREATE TABLE days_run (
    number         INTEGER PRIMARY KEY, -- from 1, without gaps
    day            BIGINT UNIQUE NOT NULL, -- since 1970-01-01
    first_block    BIGINT NOT NULL, -- of the ledger
    first_record   BIGINT NOT NULL, -- of the audit log
    first_forecast BIGINT NOT NULL  -- of the issued ones
);
-- An earlier version's days are those on which it closed blocks; its records and forecasts count as of today.
INSERT INTO days_run (day, first_block, first_record, first_forecast)
SELECT at_us / 86400000000, MIN(block), 1, 1 FROM balances GROUP BY 1 ORDER BY 2;

-- Records are kept for 400 days and three more: store/days.rs says why.
DROP TRIGGER audit_is_not_shortened;
CREATE TRIGGER audit_is_not_shortened BEFORE DELETE ON audit
    WHEN OLD.id >= COALESCE((SELECT first_record FROM days_run
        WHERE number = (SELECT MAX(number) FROM days_run) - 403), 0)
    BEGIN SELECT RAISE(ABORT, 'records of the audit log are kept for 400 days'); END;
