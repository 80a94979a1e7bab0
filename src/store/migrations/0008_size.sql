-- Lines of settlements and closes are kept packed from here on, in the same column: streams of zlib.

-- Whether a row is in a settlement is told from its block.
DROP INDEX intervals_by_time;
CREATE INDEX intervals_by_time ON intervals (start_us, block);
