-- Owners of jobs as JSON: an empty list means that no owner is known.
ALTER TABLE jobs ADD COLUMN owners TEXT NOT NULL DEFAULT '[]';
-- Owners of recurring jobs, and members, who have registered an existing one again with the same specification.
ALTER TABLE recurring_jobs ADD COLUMN owners TEXT NOT NULL DEFAULT '[]';
ALTER TABLE recurring_jobs ADD COLUMN members TEXT NOT NULL DEFAULT '[]';
