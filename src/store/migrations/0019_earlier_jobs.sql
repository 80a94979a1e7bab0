-- Training runs that reported for a trial before its present one, as JSON: each with its part of the trial's energy and
-- time.
ALTER TABLE recurring_trials ADD COLUMN earlier_jobs TEXT NOT NULL DEFAULT '[]';
CREATE INDEX recurring_trials_with_earlier_jobs ON recurring_trials (job) WHERE earlier_jobs <> '[]';
