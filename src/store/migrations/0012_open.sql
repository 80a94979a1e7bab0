-- What a daemon that is killed leaves to the next one. Both tables are overwritten every few seconds and are no part of the
-- ledger.
-- The open interval of each device as it would be closed: written into the books at the next start.
CREATE TABLE open_books (
    device TEXT PRIMARY KEY NOT NULL,
    line   TEXT NOT NULL -- JSON
) WITHOUT ROWID;

-- When the daemon was seen last, and how long each open job's lease lasted then. One row.
CREATE TABLE last_seen (
    one  INTEGER PRIMARY KEY CHECK (one = 1),
    line TEXT NOT NULL -- JSON
);

-- Digest of a checkpoint's other columns but `base_mj`, which follows from the open block.
ALTER TABLE checkpoints ADD COLUMN hash BLOB;
