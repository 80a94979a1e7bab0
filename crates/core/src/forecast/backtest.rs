//! Repeats forecasts for past times with the data known at each time, and scores them.

use chrono::{DateTime, TimeDelta, Utc};
use serde::Serialize;

use super::model::{Forecaster, Model};
use super::score::{Pair, Score, mean_if_covered, score, score_parts};
use crate::domain::{CarbonSeries, Issued, Slot};
use crate::units::GramsPerKwh;

/// Period before each forecast whose data are used: 28 days of training data, and a day for slots that extend over the
/// start of these.
const BACK: TimeDelta = TimeDelta::days(29);
/// Number of additional days that are searched backwards for a known day to repeat as forecast.
const MOST_REPEATED: i64 = 7;

/// Forecasts published by a source.
#[derive(Clone, Copy, Debug)]
pub enum PublishedForecasts<'a> {
    /// No source: the local forecaster only.
    Nothing,
    /// Series without issue times. The whole series counts as published anew before each forecast.
    Rolling(&'a CarbonSeries),
    /// Forecasts with issue times; each is used from its issue time on.
    Issued(&'a [Issued]),
}

/// Score of one forecaster over the whole time span.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BacktestRow {
    /// Forecaster: `yesterday` (actual value at the same time on the last known day), `local` (local forecaster),
    /// `provider` (source as published), `provider+bias` (source, corrected for recent errors), or `feed` (source and
    /// local forecaster blended, as the daemon uses them).
    pub source: &'static str,
    /// Length of each forecast in hours.
    pub horizon_h: u32,
    /// Score over all days ahead.
    #[serde(flatten)]
    pub score: Score,
    /// Score of each day ahead in order, if a forecast is longer than a day.
    pub by_day: Vec<Score>,
}

const SOURCES: [&str; 5] = ["yesterday", "local", "provider", "provider+bias", "feed"];

/// Scores forecasts of each length H in `horizons_h` (hours): makes one at `from` and every H hours after it, or every
/// 24 hours if H is longer, and scores its H hours up to `to`. The model behind each forecast is fitted only to actual
/// values and published forecasts of slots that have ended by then. All rows cover the same slots; beyond the end of
/// the published forecast, the rows `provider` and `provider+bias` repeat its last day. Rows without any forecast are
/// omitted.
pub fn backtest(
    actual: &CarbonSeries,
    published: PublishedForecasts<'_>,
    from: DateTime<Utc>,
    to: DateTime<Utc>,
    horizons_h: &[u32],
) -> Vec<BacktestRow> {
    horizons_h.iter().flat_map(|h| at_horizon(actual, published, from, to, (*h).max(1))).collect()
}

fn at_horizon(
    actual: &CarbonSeries,
    published: PublishedForecasts<'_>,
    from: DateTime<Utc>,
    to: DateTime<Utc>,
    horizon_h: u32,
) -> Vec<BacktestRow> {
    let horizon = TimeDelta::hours(i64::from(horizon_h));
    let sources: Vec<usize> =
        (0..SOURCES.len()).filter(|i| !matches!((published, i), (PublishedForecasts::Nothing, 2 | 3))).collect();
    // Pairs by forecaster and day ahead.
    let days = horizon_h.div_ceil(24) as usize;
    let mut pairs: [Vec<Vec<Pair>>; SOURCES.len()] = std::array::from_fn(|_| vec![Vec::new(); days]);
    let mut publications = Publications::new(published);
    let mut now = from;
    while now < to {
        let Some(ahead) = Slot::new(now, (now + horizon).min(to)) else { break };
        let Some(past) = Slot::new(now - BACK, now) else { break };
        publications.advance_to(now);
        let published = publications.published();
        let seen = ended(actual, &past);
        let model = Model::fit(&ended(published, &past), publications.issues(), &seen, now);
        let offset = model.offset(published, now);
        for (slot, outcome) in actual.overlapping(&ahead) {
            // A slot is scored with each forecast in whose hours it starts.
            if slot.start() < now || slot.start() >= ahead.end() || slot.end() > to {
                continue;
            }
            let given = mean_if_covered(published, slot);
            let repeated = given.or_else(|| on_last_day(published, slot, now));
            let forecast_with = |forecaster, given| {
                let expected = model.expect(slot, given, &offset, forecaster, now)?;
                Some((expected.intensity, Some((expected.low, expected.high))))
            };
            let plain = |value: GramsPerKwh| (value, None);
            let each = [
                on_last_day(&seen, slot, now).map(plain),
                forecast_with(Forecaster::Local, None),
                repeated.map(plain),
                repeated.and_then(|given| forecast_with(Forecaster::Corrected, Some(given))),
                forecast_with(Forecaster::Feed, given),
            ];
            if sources.iter().any(|i| each[*i].is_none()) {
                continue;
            }
            let day = usize::try_from((slot.start() - now).num_days()).unwrap_or(0).min(days - 1);
            for (pairs, forecast) in pairs.iter_mut().zip(each) {
                let Some((forecast, interval)) = forecast else { continue };
                pairs[day].push(Pair { slot: *slot, forecast, interval, actual: outcome.value });
            }
        }
        now += horizon.min(TimeDelta::days(1));
    }
    let rows = SOURCES.into_iter().zip(pairs).filter(|(_, days)| days.iter().any(|pairs| !pairs.is_empty()));
    rows.map(|(source, pairs)| {
        let by_day = if days > 1 { pairs.iter().map(|pairs| score(pairs, from)).collect() } else { Vec::new() };
        BacktestRow { source, horizon_h, score: score_parts(&pairs, from), by_day }
    })
    .collect()
}

/// Returns the mean at the same time of day on the latest earlier day on which the series covers that time; `None` if
/// no such day is near enough.
fn on_last_day(series: &CarbonSeries, slot: &Slot, now: DateTime<Utc>) -> Option<GramsPerKwh> {
    let furthest = (slot.start() - now).num_days() + 1 + MOST_REPEATED;
    (1..=furthest).find_map(|days| {
        let day = TimeDelta::days(days);
        let earlier = Slot::new(slot.start().checked_sub_signed(day)?, slot.end().checked_sub_signed(day)?)?;
        mean_if_covered(series, &earlier)
    })
}

/// Returns the points that overlap `past` and end no later than `past` does.
fn ended(series: &CarbonSeries, past: &Slot) -> CarbonSeries {
    let points = series.overlapping(past).iter().filter(|(slot, _)| slot.end() <= past.end());
    CarbonSeries::from_points(points.copied().collect()).0
}

/// Forecasts that a source has published by the current time of a backtest.
struct Publications<'a> {
    published: CarbonSeries,
    rolling: Option<&'a CarbonSeries>,
    issued: Vec<&'a Issued>,
    pending: Vec<&'a Issued>,
}

impl<'a> Publications<'a> {
    fn new(published: PublishedForecasts<'a>) -> Self {
        let (rolling, mut pending) = match published {
            PublishedForecasts::Nothing => (None, Vec::new()),
            PublishedForecasts::Rolling(series) => (Some(series), Vec::new()),
            PublishedForecasts::Issued(issued) => (None, issued.iter().collect()),
        };
        pending.sort_by_key(|i| std::cmp::Reverse(i.issued_at));
        Self { published: CarbonSeries::default(), rolling, issued: Vec::new(), pending }
    }

    /// Adds forecasts issued by `now`. Each past slot keeps the last forecast from before the slot began.
    fn advance_to(&mut self, now: DateTime<Utc>) {
        while let Some(next) = self.pending.pop_if(|i| i.issued_at <= now) {
            let ahead = next.series.points().iter().filter(|(slot, _)| slot.start() >= next.issued_at);
            ahead.for_each(|(slot, value)| self.published.insert(*slot, *value));
            self.issued.push(next);
        }
    }

    fn published(&self) -> &CarbonSeries {
        self.rolling.unwrap_or(&self.published)
    }

    fn issues(&self) -> &[&'a Issued] {
        &self.issued
    }
}
