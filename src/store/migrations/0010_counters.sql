-- Which of several counters of one device its checkpoint is of: differences between two of them mean nothing.
ALTER TABLE checkpoints ADD COLUMN read_from TEXT;
