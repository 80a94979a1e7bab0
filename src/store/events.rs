//! Demand-response events (announced times with a cap on the node's power): stored so that the daemon keeps to the caps
//! after a restart.

use chrono::{DateTime, Utc};
use rusqlite::{Connection, Row, params};

use super::{Store, StoreError, rows};
use wattune_core::domain::{DemandResponse, EventId};

/// Number of events that stay stored, whether they are over or not.
const MOST_KEPT: i64 = 10_000;

impl Store {
    /// Stores an event, in place of a stored event with the same id.
    pub async fn save_event(&self, event: &DemandResponse) -> Result<(), StoreError> {
        let sql = "INSERT INTO demand_response (id, event, over_us) VALUES (?1, ?2, ?3) \
                   ON CONFLICT (id) DO UPDATE SET event = ?2, over_us = ?3";
        let (id, over_us, event) = (event.id.clone(), event.ends_at().timestamp_micros(), rows::json(event)?);
        self.write.run(move |db| rows::execute(db, sql, params![id.as_str(), event, over_us])).await?;
        Ok(())
    }

    /// Deletes an event.
    pub async fn delete_event(&self, id: &EventId) -> Result<(), StoreError> {
        let id = id.clone();
        let sql = "DELETE FROM demand_response WHERE id = ?1";
        self.write.run(move |db| rows::execute(db, sql, [id.as_str()])).await?;
        Ok(())
    }

    /// Returns the events that do not end before `since`, ordered by id, and a problem description for each one that is
    /// unreadable. Of those that do, the newest stay stored: with a wrong clock, events may only seem to be over.
    pub async fn events(&self, since: DateTime<Utc>) -> Result<(Vec<DemandResponse>, Vec<String>), StoreError> {
        let since = since.timestamp_micros();
        let events = move |db: &mut Connection| {
            let sql = "DELETE FROM demand_response WHERE over_us < ?1 AND id NOT IN \
                       (SELECT id FROM demand_response ORDER BY over_us DESC LIMIT ?2)";
            rows::execute(db, sql, params![since, MOST_KEPT])?;
            let sql = "SELECT id, event FROM demand_response WHERE over_us >= ?1 ORDER BY id";
            let event = |row: &Row<'_>| {
                let event: DemandResponse = rows::from_json("event", rows::text(row, "event")?)?;
                event.check().map_err(|why| rows::damaged("event", why))
            };
            rows::readable(db, sql, [since], "demand-response event", "announce it again", event)
        };
        self.write.run(events).await
    }
}
