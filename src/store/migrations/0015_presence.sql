-- Requests for a start and changes of presence are looked up by their job.
CREATE INDEX IF NOT EXISTS ledger_presence_by_job ON ledger (json_extract(line, '$.job'), seq)
    WHERE kind IN ('start_request', 'presence');
-- Jobs with a key are looked up by it.
CREATE INDEX IF NOT EXISTS jobs_by_key ON jobs (json_extract(spec, '$.offers.key'), registered_us)
    WHERE json_extract(spec, '$.offers.key') IS NOT NULL;
