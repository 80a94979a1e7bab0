-- What the open block ends with, and the digest of each device's checkpoint. One row, changed with the rows that it covers.
CREATE TABLE open_block (
    one  INTEGER PRIMARY KEY CHECK (one = 1),
    line TEXT NOT NULL, -- JSON
    hash BLOB NOT NULL  -- SHA-256 of the line
);
