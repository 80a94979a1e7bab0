-- Forecasts as they were issued, kept for five weeks to be compared with what came.
CREATE TABLE issued_forecasts (
    id           INTEGER PRIMARY KEY,
    zone         TEXT NOT NULL,
    source       TEXT NOT NULL,
    kind         TEXT NOT NULL,
    scope        TEXT NOT NULL,
    issued_us    BIGINT NOT NULL,
    retrieved_us BIGINT NOT NULL,
    points       TEXT NOT NULL -- JSON: runs of slots of one length, each [start ms, length ms, [g/kWh, …]]
);
CREATE INDEX issued_by_time ON issued_forecasts (retrieved_us);

-- Up to when a source's values of what came change no more.
CREATE TABLE settlements (
    zone     TEXT NOT NULL,
    source   TEXT NOT NULL,
    kind     TEXT NOT NULL,
    scope    TEXT NOT NULL,
    final_us BIGINT NOT NULL,
    PRIMARY KEY (zone, source, kind, scope)
);
