-- What the books have of the time after a checkpoint already: integrated from power while the counter was away.
ALTER TABLE checkpoints ADD COLUMN estimated_mj BIGINT NOT NULL DEFAULT 0;
