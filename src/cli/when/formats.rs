//! The start in the formats of Slurm, cron and at: in the machine's local time.

use anyhow::Context;
use chrono::{DateTime, Datelike, MappedLocalTime, TimeDelta, TimeZone, Timelike, Utc};
use serde_json::Value;

use crate::cli::values::time_of;

/// Returns the reason why a value of the variable `TZ` is not a time zone; `None` if it is one. The system's own time
/// functions silently take an unknown time zone for UTC.
pub(super) fn why_unknown(zone: &str) -> Option<String> {
    let is_known = zone.is_empty() || tz::TimeZone::from_posix_tz(zone).is_ok();
    (!is_known).then(|| {
        let short: String = zone.chars().take(80).collect();
        format!("TZ={short:?} is no time zone of this machine; give a name such as Europe/Berlin, or unset TZ")
    })
}

/// The time at which to start a job, its latest start, and the present time.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlannedStart {
    start: DateTime<Utc>,
    latest: DateTime<Utc>,
    now: DateTime<Utc>,
}

impl PlannedStart {
    /// Returns the start in an advice.
    ///
    /// # Errors
    /// If the advice has no start.
    pub(super) fn of(advice: &Value, now: DateTime<Utc>) -> anyhow::Result<Self> {
        let start = time_of(&advice["start"]).context("the answer has no start")?;
        // A job that should start at its earliest start, later than now, is not due yet.
        Ok(Self { start, latest: time_of(&advice["latest_start"]).unwrap_or(DateTime::<Utc>::MAX_UTC), now })
    }

    fn is_now(&self) -> bool {
        self.start <= self.now
    }

    /// Returns the time for `sbatch --begin`. A local time that occurs twice, when clocks are set back, is given as
    /// seconds from now, because Slurm would use the first of the two.
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

    /// Returns minute, hour, day, month and weekday: the first five fields of a line for cron.
    pub(super) fn cron<Z: TimeZone>(&self, zone: &Z) -> String {
        let local = self.full_minute().with_timezone(zone).naive_local();
        local.format("%-M %-H %-d %-m *").to_string()
    }

    /// Returns the time for `at -t`.
    pub(super) fn at<Z: TimeZone>(&self, zone: &Z) -> String {
        let local = self.full_minute().with_timezone(zone).naive_local();
        local.format("%Y%m%d%H%M").to_string()
    }

    /// Returns warnings, in one sentence each, where [`Self::cron`] and [`Self::at`] express the start less exactly.
    pub(super) fn describe_deviations<Z: TimeZone>(&self, zone: &Z) -> Vec<String> {
        let minute = self.full_minute();
        let local = minute.with_timezone(zone).naive_local();
        let mut deviations = Vec::new();
        // The machine's time zone gives the later one first, and gives two where the doubled hour ends.
        let is_shown_at = |at: &DateTime<Z>| at.to_utc().with_timezone(zone).naive_local() == local;
        if let MappedLocalTime::Ambiguous(one, other) = zone.from_local_datetime(&local)
            && is_shown_at(&one)
            && is_shown_at(&other)
        {
            let which = if one.to_utc().min(other.to_utc()) == minute { "first" } else { "second" };
            deviations.push(format!(
                "{} occurs twice, because clocks are put back that night, and the {which} one is meant; --format slurm tells them apart",
                local.format("%Y-%m-%d %H:%M")
            ));
        }
        if minute > self.latest && !self.is_now() {
            deviations
                .push("no full minute is left before the latest start, so this is the next one after it".to_owned());
        }
        deviations
    }

    /// Returns a warning if [`Self::cron`], which has no year, matches in an earlier year, too.
    pub(super) fn describe_earlier_year<Z: TimeZone>(&self, zone: &Z) -> Option<String> {
        let local = |at: DateTime<Utc>| at.with_timezone(zone).naive_local();
        let (now, start) = (local(self.now), local(self.full_minute()));
        let mut earlier = (now.year()..start.year()).filter_map(|year| start.with_year(year));
        let first = earlier.find(|at| *at > now)?;
        let shown = |at: chrono::NaiveDateTime| at.format("%Y-%m-%d %H:%M").to_string();
        Some(format!(
            "cron lines have no year: this one would start the job at {}, not at {}; add it after the first of these times",
            shown(first),
            shown(start)
        ))
    }

    /// Returns the full minute of the start: the next one, unless that is after the latest start. A minute that has
    /// begun is too late, because cron and at do not run what is past.
    fn full_minute(&self) -> DateTime<Utc> {
        let next = rounded_up(self.now, 60);
        let first = if next - self.now < TimeDelta::seconds(2) { next + TimeDelta::minutes(1) } else { next };
        let minute = rounded_up(self.start, 60);
        let minute = if minute > self.latest { minute - TimeDelta::minutes(1) } else { minute };
        minute.max(first)
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

    /// A zone whose clocks change as those of Berlin did in 2026: on 29 March and 25 October at 01:00 UTC. Of two equal
    /// times it gives the later one first, as [`chrono::Local`] does.
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
                (Some(first), Some(second)) => MappedLocalTime::Ambiguous(second, first),
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
            let planned = PlannedStart::of(&serde_json::json!({ "start": start }), utc(now)).expect("a start");
            let written = (planned.slurm(&Berlin), planned.cron(&Berlin), planned.at(&Berlin));
            assert_eq!(written, (slurm.to_owned(), cron.to_owned(), at.to_owned()), "{start} at {now}");
        }
        assert!(PlannedStart::of(&serde_json::json!({ "start": null }), utc(now)).is_err());
    }

    #[test]
    fn full_minutes_keep_to_the_latest_start_and_deviations_are_named() {
        let now = "2026-10-24T22:00:00Z";
        let table = [
            // (start, latest start, at, deviation)
            ("2026-10-24T23:30:10Z", "2026-10-24T23:30:10Z", "202610250130", None),
            ("2026-10-24T23:30:10Z", "2026-10-24T23:31:00Z", "202610250131", None),
            ("2026-10-24T22:00:30Z", "2026-10-24T22:00:40Z", "202610250001", Some("no full minute")),
            ("2026-10-25T00:30:00Z", "2026-10-25T09:00:00Z", "202610250230", Some("the first one is meant")),
            ("2026-10-25T01:30:00Z", "2026-10-25T09:00:00Z", "202610250230", Some("the second one is meant")),
        ];
        for (start, latest, at, deviation) in table {
            let advice = serde_json::json!({ "start": start, "latest_start": latest });
            let planned = PlannedStart::of(&advice, utc(now)).expect("a start");
            let deviations = planned.describe_deviations(&Berlin).join(" ");
            assert_eq!(
                (planned.at(&Berlin).as_str(), deviations.is_empty()),
                (at, deviation.is_none()),
                "{start}: {deviations}"
            );
            assert!(deviation.is_none_or(|part| deviations.contains(part)), "{start}: {deviations}");
        }
    }

    #[test]
    fn a_start_that_cron_would_take_for_one_of_an_earlier_year_is_described() {
        for (start, earlier) in [
            ("2026-10-25T09:00:00Z", None),
            ("2027-03-01T09:00:00Z", None),
            ("2027-10-24T23:00:00Z", None),
            ("2027-10-24T23:01:00Z", Some("2026-10-25 00:01")),
            ("2029-12-01T09:00:00Z", Some("2026-12-01 10:00")),
            // Only 2028 has this day.
            ("2028-02-29T09:00:00Z", None),
        ] {
            let planned = PlannedStart::of(&serde_json::json!({ "start": start }), utc("2026-10-24T22:00:00Z"));
            let described = planned.expect("a start").describe_earlier_year(&Berlin);
            assert_eq!(described.is_some(), earlier.is_some(), "{start}: {described:?}");
            assert!(earlier.is_none_or(|at| described.is_some_and(|text| text.contains(at))), "{start}");
        }
    }

    #[test]
    fn unknown_time_zones_are_named() {
        for known in ["", "UTC", "CET-1CEST,M3.5.0,M10.5.0/3", "XXX-5"] {
            assert_eq!(why_unknown(known), None, "{known}");
        }
        assert!(why_unknown("Nope/City").is_some_and(|why| why.contains("Nope/City")));
    }
}
