//! The start as Slurm, cron and at read it: in the machine's local time.

use anyhow::Context;
use chrono::{DateTime, MappedLocalTime, TimeDelta, TimeZone, Timelike, Utc};
use serde_json::Value;

/// The time at which to start a job, and the present time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    start: DateTime<Utc>,
    now: DateTime<Utc>,
}

impl Moment {
    /// Returns the start in an advice.
    ///
    /// # Errors
    /// If the advice has no start.
    pub(super) fn of(advice: &Value, now: DateTime<Utc>) -> anyhow::Result<Self> {
        let start = advice["start"].as_str().and_then(|text| DateTime::parse_from_rfc3339(text).ok());
        let start = start.context("the answer has no start")?.to_utc();
        // A job that should start at its earliest start, later than now, is not due yet.
        Ok(Self { start, now })
    }

    fn is_now(&self) -> bool {
        self.start <= self.now
    }

    /// Returns the time for `sbatch --begin`. Local times that occur twice, when clocks are put back, are written as a
    /// distance from now, since Slurm would take the first of them.
    pub(super) fn slurm<Z: TimeZone>(&self, zone: &Z) -> String {
        if self.is_now() {
            return "now".to_owned();
        }
        let local = rounded_up(self.start, 1).with_timezone(zone).naive_local();
        match zone.from_local_datetime(&local) {
            MappedLocalTime::Single(_) => local.format("%Y-%m-%dT%H:%M:%S").to_string(),
            _ => format!("now+{}", (self.start - self.now).num_seconds() + 1),
        }
    }

    /// Returns minute, hour, day, month and weekday of a line for cron.
    pub(super) fn cron<Z: TimeZone>(&self, zone: &Z) -> String {
        let local = self.full_minute().with_timezone(zone).naive_local();
        local.format("%-M %-H %-d %-m *").to_string()
    }

    /// Returns the time for `at -t`.
    pub(super) fn at<Z: TimeZone>(&self, zone: &Z) -> String {
        let local = self.full_minute().with_timezone(zone).naive_local();
        local.format("%Y%m%d%H%M").to_string()
    }

    /// Returns the full minute of the start; the next one if the start is now, because cron and at do not run what is
    /// past.
    fn full_minute(&self) -> DateTime<Utc> {
        if self.is_now() {
            let next = rounded_up(self.now, 60);
            return if next - self.now < TimeDelta::seconds(2) { next + TimeDelta::minutes(1) } else { next };
        }
        rounded_up(self.start, 60)
    }
}

/// Returns the first full second or minute (`seconds` is 1 or 60) that is not before a time.
fn rounded_up(at: DateTime<Utc>, seconds: i64) -> DateTime<Utc> {
    let whole = at.with_nanosecond(0).unwrap_or(at);
    let into = whole.timestamp().rem_euclid(seconds);
    let begun = whole - TimeDelta::seconds(into);
    if begun == at { at } else { begun + TimeDelta::seconds(seconds) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A zone whose clocks change as those of Berlin did in 2026: on 29 March and 25 October at 01:00 UTC.
    #[derive(Clone, Copy, Debug)]
    struct Berlin;

    fn utc(text: &str) -> DateTime<Utc> {
        text.parse().expect("a time")
    }

    impl TimeZone for Berlin {
        type Offset = chrono::FixedOffset;

        fn from_offset(_: &Self::Offset) -> Self {
            Self
        }

        fn offset_from_local_date(&self, local: &chrono::NaiveDate) -> MappedLocalTime<Self::Offset> {
            self.offset_from_local_datetime(&local.and_time(chrono::NaiveTime::MIN))
        }

        fn offset_from_local_datetime(&self, local: &chrono::NaiveDateTime) -> MappedLocalTime<Self::Offset> {
            let fits = |hours: i32| {
                let offset = chrono::FixedOffset::east_opt(hours * 3600).expect("an offset");
                let at = *local - TimeDelta::hours(hours.into());
                (self.offset_from_utc_datetime(&at) == offset).then_some(offset)
            };
            match (fits(2), fits(1)) {
                (Some(first), Some(second)) => MappedLocalTime::Ambiguous(first, second),
                (Some(only), None) | (None, Some(only)) => MappedLocalTime::Single(only),
                (None, None) => MappedLocalTime::None,
            }
        }

        fn offset_from_utc_date(&self, utc: &chrono::NaiveDate) -> Self::Offset {
            self.offset_from_utc_datetime(&utc.and_time(chrono::NaiveTime::MIN))
        }

        fn offset_from_utc_datetime(&self, at: &chrono::NaiveDateTime) -> Self::Offset {
            let summer = utc("2026-03-29T01:00:00Z")..utc("2026-10-25T01:00:00Z");
            let hours = if summer.contains(&at.and_utc()) { 2 } else { 1 };
            chrono::FixedOffset::east_opt(hours * 3600).expect("an offset")
        }
    }

    #[test]
    fn local_times_are_right_in_nights_when_clocks_change() {
        let now = "2026-03-28T12:00:10Z";
        let table = [
            // (now, start, Slurm, cron, at)
            (now, "2026-03-28T13:00:00Z", "2026-03-28T14:00:00", "0 14 28 3 *", "202603281400"),
            (now, "2026-03-29T00:59:00Z", "2026-03-29T01:59:00", "59 1 29 3 *", "202603290159"),
            (now, "2026-03-29T01:00:00Z", "2026-03-29T03:00:00", "0 3 29 3 *", "202603290300"),
            (now, "2026-03-29T01:30:00.25Z", "2026-03-29T03:30:01", "31 3 29 3 *", "202603290331"),
            (now, "2026-12-31T23:30:00Z", "2027-01-01T00:30:00", "30 0 1 1 *", "202701010030"),
            // Twice in the local time: 02:30 summer time, then 02:30 winter time.
            ("2026-10-24T22:00:00Z", "2026-10-25T00:30:00Z", "now+9001", "30 2 25 10 *", "202610250230"),
            ("2026-10-24T22:00:00Z", "2026-10-25T01:30:00Z", "now+12601", "30 2 25 10 *", "202610250230"),
            ("2026-10-24T22:00:00Z", "2026-10-25T02:00:00Z", "2026-10-25T03:00:00", "0 3 25 10 *", "202610250300"),
            // Now, and a start in the past.
            (now, now, "now", "1 13 28 3 *", "202603281301"),
            (now, "2026-03-28T09:00:00Z", "now", "1 13 28 3 *", "202603281301"),
            ("2026-03-28T12:00:59Z", "2026-03-28T12:00:00Z", "now", "2 13 28 3 *", "202603281302"),
        ];
        for (now, start, slurm, cron, at) in table {
            let moment = Moment::of(&serde_json::json!({ "start": start }), utc(now)).expect("a start");
            let written = (moment.slurm(&Berlin), moment.cron(&Berlin), moment.at(&Berlin));
            assert_eq!(written, (slurm.to_owned(), cron.to_owned(), at.to_owned()), "{start} at {now}");
        }
        assert!(Moment::of(&serde_json::json!({ "start": null }), utc(now)).is_err());
    }
}
