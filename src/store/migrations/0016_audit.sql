-- The audit log: one line for each control action. Records are appended; none is changed, and none is deleted
-- before it is 400 days older than the newest one. (A clock that is ahead of the machine's makes none older.)
CREATE TABLE audit (
    id     INTEGER PRIMARY KEY AUTOINCREMENT, -- a number is never given twice
    at_us  BIGINT NOT NULL,
    gpu    TEXT,
    job_id TEXT,
    line   TEXT NOT NULL -- JSON
);
CREATE INDEX audit_by_time ON audit (at_us);
CREATE INDEX audit_by_gpu ON audit (gpu, id) WHERE gpu IS NOT NULL;
CREATE INDEX audit_by_job ON audit (job_id, id) WHERE job_id IS NOT NULL;
CREATE TRIGGER audit_is_not_changed BEFORE UPDATE ON audit
    BEGIN SELECT RAISE(ABORT, 'records of the audit log are written once'); END;
CREATE TRIGGER audit_is_not_shortened BEFORE DELETE ON audit
    WHEN OLD.at_us > MIN((SELECT MAX(at_us) FROM audit), unixepoch() * 1000000) - 400 * 86400 * 1000000
    BEGIN SELECT RAISE(ABORT, 'records of the audit log are kept for 400 days'); END;
