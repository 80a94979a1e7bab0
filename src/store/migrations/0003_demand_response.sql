-- Demand-response events as they were announced.
CREATE TABLE demand_response (
    id      TEXT PRIMARY KEY NOT NULL,
    event   TEXT NOT NULL, -- JSON
    over_us BIGINT NOT NULL
);
