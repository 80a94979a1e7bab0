-- References and outcomes are looked up by their job.
CREATE INDEX ledger_by_job ON ledger (json_extract(line, '$.job'), kind, seq)
    WHERE kind IN ('counterfactual', 'outcome');
-- And trials by their training run.
CREATE INDEX recurring_trials_by_job ON recurring_trials (job_id) WHERE job_id IS NOT NULL;
