-- Owners of trials as JSON: who began the trial. An empty list means that no owner is known; the owners of the recurring
-- job then decide.
ALTER TABLE recurring_trials ADD COLUMN owners TEXT NOT NULL DEFAULT '[]';
