//! Carbon budget of the node: a limit on the emissions of all of the node's jobs within a budget period, such as a
//! month.

use chrono::{DateTime, Datelike, Days, Months, NaiveTime, Utc};
use serde::{Deserialize, Serialize};

use super::hourly_emissions::HourlyEmissions;
use crate::controller::datetime_serde::optional_datetime;
use wattune_core::domain::{CarbonSeries, DeviceKind, Slot, TimeSeries};
use wattune_core::ledger::{self, Interval, Share};
use wattune_core::units::{GramsCo2e, GramsPerKwh, Short};

/// Valid limits in gCO2e. An idle GPU emits the lower bound within seconds, so a lower limit is a mistake of units; no
/// node emits the upper bound.
const LIMIT_RANGE_G: std::ops::RangeInclusive<f64> = 0.001..=1e12;

/// `[carbon_budget]`: limit on the emissions of all jobs per day, week or month, or over one period with given start
/// and end.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BudgetSettings {
    /// Limit on the emissions of all jobs in each budget period, in gCO2e.
    pub limit_g: Option<f64>,
    /// Length of the budget periods, which follow one another in UTC; absent if `from` and `until` give a single
    /// period.
    pub per: Option<Period>,
    /// Start of the single budget period; given with `until`, in place of `per`.
    #[serde(deserialize_with = "optional_datetime")]
    pub from: Option<DateTime<Utc>>,
    /// End of the single budget period.
    #[serde(deserialize_with = "optional_datetime")]
    pub until: Option<DateTime<Utc>>,
}

/// Length of the budget periods: calendar days, weeks or months in UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Period {
    /// A period is a day, from midnight.
    Day,
    /// A period is a week, from Monday.
    Week,
    /// A period is a month, from its first day.
    Month,
}

impl Period {
    /// Returns the day, week or month that contains a time.
    fn around(self, t: DateTime<Utc>) -> Option<Slot> {
        let today = t.date_naive();
        let (first, next) = match self {
            Self::Day => (today, today.checked_add_days(Days::new(1))?),
            Self::Week => {
                let monday = today.checked_sub_days(Days::new(today.weekday().num_days_from_monday().into()))?;
                (monday, monday.checked_add_days(Days::new(7))?)
            }
            Self::Month => {
                let first = today.with_day(1)?;
                (first, first.checked_add_months(Months::new(1))?)
            }
        };
        Slot::new(first.and_time(NaiveTime::MIN).and_utc(), next.and_time(NaiveTime::MIN).and_utc())
    }
}

impl BudgetSettings {
    /// Returns the limit for each budget period; `None` without a budget.
    pub fn limit(&self) -> Option<GramsCo2e> {
        self.limit_g.and_then(GramsCo2e::try_new)
    }

    /// Returns the budget period that contains `now`. A single period is also returned before its start. Returns `None`
    /// without a budget, or after the end of a single period.
    pub fn span(&self, now: DateTime<Utc>) -> Option<Slot> {
        self.limit()?;
        match (self.per, self.from, self.until) {
            (Some(period), ..) => period.around(now),
            (None, Some(from), Some(until)) => Slot::new(from, until).filter(|span| now < span.end()),
            _ => None,
        }
    }

    /// Returns all budget periods from the one at `now` to the one at `until`, in time order.
    fn spans(&self, now: DateTime<Utc>, until: DateTime<Utc>) -> Vec<Slot> {
        let next = |span: &Slot| self.span(span.end());
        std::iter::successors(self.span(now), next).take_while(|span| span.start() < until).collect()
    }

    /// Checks the values and their combination; the error begins with the key and states what is valid.
    pub fn check(&self) -> Result<(), String> {
        let Self { limit_g, per, from, until } = self;
        let Some(limit) = limit_g else {
            let key = per.map(|_| "per").or(from.map(|_| "from")).or(until.map(|_| "until"));
            return key.map_or(Ok(()), |key| {
                Err(format!("{key} is set without limit_g; set limit_g in gCO2e, or remove {key}"))
            });
        };
        if !LIMIT_RANGE_G.contains(limit) {
            return Err(format!("limit_g = {} must be from 0.001 to 1e12 grams of CO2 equivalent", Short(*limit)));
        }
        match (per, from, until) {
            (Some(_), None, None) => Ok(()),
            (None, Some(from), Some(until)) if from < until => Ok(()),
            (None, Some(_), Some(until)) => Err(format!("until is {}, not after from", until.format("%FT%TZ"))),
            (Some(_), ..) => {
                let key = if from.is_some() { "from" } else { "until" };
                Err(format!("per and {key} are both set; give only one period: per, or from and until"))
            }
            _ => Err("limit_g needs a period: give per (\"day\", \"week\" or \"month\"), or from and until".into()),
        }
    }
}

/// Carbon budget and the emissions counted towards it.
#[derive(Default)]
pub(crate) struct BudgetAccount {
    pub(super) settings: BudgetSettings,
    /// First the budget period that is being counted, second the emissions of all jobs' GPUs within that period so far;
    /// `None` without a budget.
    pub(super) counted: Option<(Slot, HourlyEmissions)>,
}

impl BudgetAccount {
    pub(crate) fn new(settings: BudgetSettings) -> Self {
        Self { settings, counted: None }
    }

    /// Returns the budget period at `now`, as [`BudgetSettings::span`] does.
    pub(crate) fn span(&self, now: DateTime<Utc>) -> Option<Slot> {
        self.settings.span(now)
    }

    /// Adds the emissions of closed intervals to those of the counted budget period, by the intensities in `series`.
    pub(crate) fn add(&mut self, rows: &[Interval], series: &CarbonSeries) {
        let Some((span, sum)) = &mut self.counted else { return };
        for row in ledger::within(rows, span).iter().filter(|row| counts(row)) {
            sum.add(row, series);
        }
    }

    /// Replaces an hour's counted emissions by those of `rows` with the intensities in `series`.
    pub(crate) fn recount(&mut self, hour: DateTime<Utc>, rows: &[Interval], series: &CarbonSeries) {
        let Some((span, sum)) = &mut self.counted else { return };
        sum.recount(hour, ledger::within(rows, span).iter().filter(|row| counts(row)), series);
    }

    /// Returns the hours with counted emissions.
    pub(crate) fn hours(&self) -> impl Iterator<Item = DateTime<Utc>> {
        self.counted.iter().flat_map(|(_, sum)| sum.hours())
    }

    /// Returns the counted emissions within a budget period; zero if another period is being counted. Energy without a
    /// known carbon intensity counts with the mean intensity of the other energy, or with `otherwise` if there is none.
    pub(super) fn counted_emissions(&self, span: &Slot, otherwise: GramsPerKwh) -> GramsCo2e {
        let counted = self.counted.as_ref().filter(|(of, _)| of == span);
        counted.map_or(GramsCo2e::ZERO, |(_, sum)| sum.sum().estimate(otherwise))
    }

    /// Returns the rest of the budget for each budget period from `now` up to `until`; an empty series without a
    /// budget. Energy without a known carbon intensity counts as in [`Self::counted_emissions`].
    pub(crate) fn left(
        &self,
        now: DateTime<Utc>,
        until: DateTime<Utc>,
        otherwise: GramsPerKwh,
    ) -> TimeSeries<GramsCo2e> {
        let Some(limit) = self.settings.limit() else { return TimeSeries::default() };
        let spans = self.settings.spans(now, until).into_iter();
        let left = |span: Slot| (span, limit - self.counted_emissions(&span, otherwise));
        TimeSeries::from_points(spans.map(left).collect()).0
    }
}

/// Returns whether a row counts towards the budget: only the GPU energy of jobs does, because plans determine only that
/// energy.
pub(super) fn counts(row: &Interval) -> bool {
    matches!(row.share, Share::Job(_)) && row.device.kind() == DeviceKind::Gpu
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> DateTime<Utc> {
        text.parse().expect("a datetime")
    }

    fn settings(text: &str) -> BudgetSettings {
        toml::from_str(text).expect("parses")
    }

    #[test]
    fn spans_follow_the_calendar() {
        let table = [
            ("day", "2026-02-28T00:00:00Z", "2026-03-01T00:00:00Z"),
            ("week", "2026-02-23T00:00:00Z", "2026-03-02T00:00:00Z"),
            ("month", "2026-02-01T00:00:00Z", "2026-03-01T00:00:00Z"),
        ];
        for (per, from, until) in table {
            let budget = settings(&format!("limit_g = 5\nper = \"{per}\""));
            budget.check().expect("right");
            let spans = budget.spans(at("2026-02-28T13:00:00Z"), at("2026-03-12T00:00:00Z"));
            assert_eq!((spans[0].start(), spans[0].end()), (at(from), at(until)), "{per}");
            assert!(spans.windows(2).all(|s| s[0].end() == s[1].start()), "{spans:?}");
            assert!(spans.last().is_some_and(|s| s.end() >= at("2026-03-12T00:00:00Z")), "{spans:?}");
        }
        let once = "limit_g = 5\nfrom = \"2026-02-01T00:00:00Z\"\nuntil = \"2026-02-03T00:00:00Z\"";
        let once = settings(once);
        once.check().expect("right");
        assert_eq!(once.spans(at("2026-01-01T00:00:00Z"), at("2027-01-01T00:00:00Z")).len(), 1);
        assert_eq!(once.span(at("2026-02-03T00:00:00Z")), None, "it is over");
    }

    #[test]
    fn mistakes_are_named_by_key() {
        let table = [
            ("per = \"day\"", "per is set without limit_g"),
            ("limit_g = 0\nper = \"day\"", "limit_g = 0 must be from 0.001 to 1e12"),
            ("limit_g = 1e300\nper = \"day\"", "limit_g = 1e300 must be"),
            ("limit_g = 5", "limit_g needs a period"),
            (
                "limit_g = 5\nper = \"day\"\nfrom = \"2026-02-01T00:00:00Z\"\nuntil = \"2026-02-02T00:00:00Z\"",
                "per and from are both set; give only one",
            ),
            (
                "limit_g = 5\nper = \"day\"\nuntil = \"2026-02-02T00:00:00Z\"",
                "per and until are both set; give only one",
            ),
            ("limit_g = 5\nfrom = \"2026-02-01T00:00:00Z\"", "limit_g needs a period"),
            (
                "limit_g = 5\nfrom = \"2026-02-02T00:00:00Z\"\nuntil = \"2026-02-01T00:00:00Z\"",
                "until is 2026-02-01T00:00:00Z, not after from",
            ),
        ];
        for (text, why) in table {
            let said = settings(text).check().expect_err("wrong");
            assert!(said.starts_with(why), "{text}: {said}");
        }
        assert_eq!(BudgetSettings::default().check(), Ok(()));
        assert_eq!(BudgetSettings::default().span(at("2026-02-03T00:00:00Z")), None);
    }
}
