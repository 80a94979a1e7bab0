//! Demand-response events, which must survive a restart: a cap is a promise.

use chrono::{DateTime, Utc};
use sqlx::Row;

use super::{Store, StoreError, rows};
use crate::domain::{DemandResponse, EventId};

impl Store {
    /// Writes an event, or what became of it, over what is stored of its id.
    ///
    /// # Errors
    /// If it cannot be written.
    pub async fn save_event(&self, event: &DemandResponse) -> Result<(), StoreError> {
        sqlx::query(
            "INSERT INTO demand_response (id, event, over_us) VALUES ($1, $2, $3) \
             ON CONFLICT (id) DO UPDATE SET event = $2, over_us = $3",
        )
        .bind(event.id.as_str())
        .bind(rows::json(event)?)
        .bind(event.over_at().timestamp_micros())
        .execute(&self.pool)
        .await?;
        Ok(())
    }

    /// Forgets an event.
    ///
    /// # Errors
    /// If the statement fails.
    pub async fn delete_event(&self, id: &EventId) -> Result<(), StoreError> {
        sqlx::query("DELETE FROM demand_response WHERE id = $1").bind(id.as_str()).execute(&self.pool).await?;
        Ok(())
    }

    /// The stored events, by id. Those that were over before `since` are forgotten.
    ///
    /// # Errors
    /// If they cannot be read, or one is not what this program writes.
    pub async fn events(&self, since: DateTime<Utc>) -> Result<Vec<DemandResponse>, StoreError> {
        let forget = sqlx::query("DELETE FROM demand_response WHERE over_us < $1");
        forget.bind(since.timestamp_micros()).execute(&self.pool).await?;
        let found = sqlx::query("SELECT event FROM demand_response ORDER BY id").fetch_all(&self.pool).await?;
        found.iter().map(|row| rows::from_json("event", &row.try_get::<String, _>("event")?)).collect()
    }
}
