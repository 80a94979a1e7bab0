//! Profiles (throughput and power by GPU setting) that training runs measured, stored for later runs with the same key:
//! job name, batch size and GPU models.

use chrono::{DateTime, Utc};
use rusqlite::{Row, params};

use super::{Store, StoreError, rows};
use wattune_core::domain::{JobName, ProfileKey};
use wattune_core::profile::Record;

impl Store {
    /// Returns the profile that earlier runs with this key measured; `None` if there is none.
    pub async fn profile(&self, key: &ProfileKey) -> Result<Option<Record>, StoreError> {
        let key = rows::json(key)?;
        let sql = "SELECT record FROM profiles WHERE key = ?1";
        let record = |row: &Row<'_>| rows::from_json("profile", rows::text(row, "record")?);
        self.short_reads.run(move |db| rows::optional(db, sql, [key], record)).await
    }

    /// Returns the batch sizes and profiles of runs with the same name and GPU models but other batch sizes.
    pub async fn neighbouring_profiles(&self, key: &ProfileKey) -> Result<Vec<(u64, Record)>, StoreError> {
        let keys = keys_of(&key.name)?;
        let sql = "SELECT key, record FROM profiles WHERE key >= ?1 AND key < ?2";
        let key = key.clone();
        let neighbour = move |row: &Row<'_>| {
            let other: ProfileKey = rows::from_json("profile", rows::text(row, "key")?)?;
            match other.batch_size.filter(|b| Some(*b) != key.batch_size && other.gpus == key.gpus) {
                Some(batch_size) => Ok(Some((batch_size, rows::from_json("profile", rows::text(row, "record")?)?))),
                None => Ok(None),
            }
        };
        let found = self.short_reads.run(move |db| rows::all(db, sql, keys, neighbour)).await?;
        Ok(found.into_iter().flatten().collect())
    }

    /// Stores a profile for later runs with this key, in place of the previous one.
    pub async fn save_profile(&self, key: &ProfileKey, record: &Record, now: DateTime<Utc>) -> Result<(), StoreError> {
        let sql = "INSERT INTO profiles (key, record, updated_us) VALUES (?1, ?2, ?3) \
                   ON CONFLICT (key) DO UPDATE SET record = ?2, updated_us = ?3";
        let (key, record) = (rows::json(key)?, rows::json(record)?);
        self.write.run(move |db| rows::execute(db, sql, params![key, record, now.timestamp_micros()])).await?;
        Ok(())
    }
}

/// Returns the bounds of the keys of all profiles with this job name. Keys are JSON texts that begin with the name and
/// the field `batch_size`. Those of one name lie between `begin:` and `begin;`, because `;` is the character after `:`.
pub(super) fn keys_of(name: &JobName) -> Result<[String; 2], StoreError> {
    let begin = format!("{{\"name\":{},\"batch_size\"", rows::json(name)?);
    Ok([format!("{begin}:"), format!("{begin};")])
}
