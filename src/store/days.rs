//! Days on which a daemon ran: the measure of age for data that is deleted, or summed up, when it is old.
//!
//! The clock alone is no measure: one start with a wrong date would make everything old, and a record with a wrong date
//! would be deleted at once, or never. Each new UTC day is therefore noted in the order in which it comes, with the
//! numbers of the next block, audit record and forecast. What has smaller numbers than the day noted n days before is
//! at least n days old, whatever date it bears.

use chrono::{DateTime, Utc};
use rusqlite::Connection;

use super::connection::writing;
use super::{Store, StoreError, audit, rows};

/// Number of noted days that do not count: the present one, which has only begun, and two that a wrong clock may have
/// added. The trigger of the audit log (migration 20) has the same number.
const UNCERTAIN: i64 = 3;

/// Column of the table `days_run` with the number of the first row of a day.
#[derive(Clone, Copy, Debug)]
pub(super) enum FirstOf {
    /// Block (intervals of about an hour) of the ledger.
    Blocks,
    /// Record of the audit log.
    AuditRecords,
    /// Forecast as it was issued.
    Forecasts,
}

impl Store {
    /// Notes the UTC day of `now`, unless it was noted before, and then deletes the expired records of the audit log.
    pub async fn begin_day(&self, now: DateTime<Utc>) -> Result<(), StoreError> {
        self.write.run(move |db| begin_day(db, now)).await
    }

    /// Returns the number of the first block (intervals of about an hour) that is not older than `days` days on which a
    /// daemon ran. Returns 0 if no block is.
    pub async fn first_block_kept(&self, days: i64) -> Result<u64, StoreError> {
        self.short_reads.run(move |db| rows::unsigned(first_kept(db, FirstOf::Blocks, days)?)).await
    }
}

/// Returns the number of the first row that is not older than `days` days on which a daemon ran; 0 if no row is.
pub(super) fn first_kept(db: &Connection, of: FirstOf, days: i64) -> Result<i64, StoreError> {
    let column = match of {
        FirstOf::Blocks => "first_block",
        FirstOf::AuditRecords => "first_record",
        FirstOf::Forecasts => "first_forecast",
    };
    let sql = format!("SELECT {column} FROM days_run WHERE number = (SELECT MAX(number) FROM days_run) - ?1");
    Ok(rows::optional(db, &sql, [days.saturating_add(UNCERTAIN)], rows::first)?.unwrap_or_default())
}

fn begin_day(db: &mut Connection, now: DateTime<Utc>) -> Result<(), StoreError> {
    let tx = writing(db)?;
    let sql = "INSERT OR IGNORE INTO days_run (day, first_block, first_record, first_forecast) VALUES (?1, \
               (SELECT COALESCE(MAX(block), 0) + 1 FROM balances), (SELECT COALESCE(MAX(id), 0) + 1 FROM audit), \
               (SELECT COALESCE(MAX(id), 0) + 1 FROM issued_forecasts))";
    if rows::execute(&tx, sql, [now.timestamp().div_euclid(86_400)])? > 0 {
        audit::expire(&tx, first_kept(&tx, FirstOf::AuditRecords, audit::KEPT_DAYS)?)?;
    }
    Ok(tx.commit()?)
}

#[cfg(test)]
mod tests {
    use chrono::TimeDelta;

    use super::*;
    use crate::store::migrate;

    fn day(number: i64) -> DateTime<Utc> {
        DateTime::UNIX_EPOCH + TimeDelta::days(20_000 + number) + TimeDelta::hours(7)
    }

    /// Returns an empty database in memory.
    fn database() -> Connection {
        let mut db = Connection::open_in_memory().expect("opens");
        migrate::migrate(&mut db).expect("made");
        db
    }

    fn record(db: &Connection, at: DateTime<Utc>) {
        let sql = "INSERT INTO audit (at_us, line) VALUES (?1, '{}')";
        rows::execute(db, sql, [at.timestamp_micros()]).expect("written");
    }

    fn records(db: &Connection) -> Vec<i64> {
        rows::all(db, "SELECT id FROM audit ORDER BY id", [], rows::first).expect("read")
    }

    #[test]
    fn a_wrong_clock_deletes_no_record_and_400_days_do() {
        let mut db = database();
        begin_day(&mut db, day(0)).expect("noted");
        record(&db, day(0));
        // Two starts with wrong dates, one of them over midnight.
        for wrong in [day(401), day(402), DateTime::UNIX_EPOCH] {
            begin_day(&mut db, wrong).expect("noted");
            record(&db, wrong);
        }
        assert_eq!(records(&db), [1, 2, 3, 4], "one wrong date makes nothing old");
        for number in 1..400 {
            begin_day(&mut db, day(number)).expect("noted");
            begin_day(&mut db, day(number) + TimeDelta::hours(1)).expect("noted");
            record(&db, day(number));
        }
        assert_eq!(records(&db).len(), 403);
        let refused = db.execute("DELETE FROM audit WHERE id = 1", []).expect_err("refused").to_string();
        assert!(refused.contains("kept for 400 days"), "{refused}");
        // Records go in the order in which they came: those with wrong dates neither sooner nor later than others.
        for number in 403..1000 {
            begin_day(&mut db, day(number)).expect("noted");
            record(&db, day(number));
            let kept = records(&db);
            assert!(kept.windows(2).all(|pair| pair[1] == pair[0] + 1), "{kept:?}");
            assert!(kept.len() <= 405, "the log does not grow without end: {}", kept.len());
        }
        assert!(records(&db)[0] > 500, "{:?}", records(&db)[0]);
        // Even when all are deleted, no number is used again.
        for number in 1000..1405 {
            begin_day(&mut db, day(number)).expect("noted");
        }
        assert_eq!(records(&db), [] as [i64; 0]);
        record(&db, day(1405));
        assert_eq!(records(&db), [1001]);
    }

    #[test]
    fn a_day_is_noted_once() {
        let mut db = database();
        for number in [0, 0, 1, 0, 1, 2] {
            begin_day(&mut db, day(number)).expect("noted");
        }
        let numbers: Vec<i64> = rows::all(&db, "SELECT number FROM days_run", [], rows::first).expect("read");
        assert_eq!(numbers, [1, 2, 3]);
        assert_eq!(first_kept(&db, FirstOf::Blocks, 1).expect("read"), 0);
        begin_day(&mut db, day(3)).expect("noted");
        begin_day(&mut db, day(4)).expect("noted");
        assert_eq!(first_kept(&db, FirstOf::Blocks, 1).expect("read"), 1);
        assert_eq!(first_kept(&db, FirstOf::Blocks, i64::MAX).expect("read"), 0);
    }
}
