//! Forecasts of the past, made with what was known then, and scored.

use chrono::{DateTime, TimeDelta, Utc};
use serde::Serialize;

use super::model::{Follow, Model, ModelPolicy};
use super::score::{Pair, Score, over_whole, score, score_parts};
use crate::domain::{CarbonSeries, Issued, Slot};
use crate::units::GramsPerKwh;

/// Older values are not looked at: what a model learns from, and a day more for the slots cut by it.
const BACK: TimeDelta = TimeDelta::days(29);
/// A day is repeated that lies so many days back at the most.
const MOST_REPEATED: i64 = 7;

/// What a source said.
#[derive(Clone, Copy, Debug)]
pub enum Said<'a> {
    /// There is no source: the local forecaster stands alone.
    Nothing,
    /// A value for each slot without the time at which it was said. It is taken to be said anew whenever a forecast is
    /// made, for as far as that reaches.
    Rolling(&'a CarbonSeries),
    /// Forecasts with the time of each; what is not issued yet is not seen.
    Issued(&'a [Issued]),
}

/// How good one kind of forecast was over the whole span.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BacktestRow {
    /// `yesterday` (the same time on the last day known), `local`, `provider`, `provider+bias`, or `feed`: what the
    /// daemon would use.
    pub source: &'static str,
    /// How far each forecast looks ahead, in hours.
    pub horizon_h: u32,
    /// How good it was.
    #[serde(flatten)]
    pub score: Score,
    /// The same for each day ahead, the first one first, where there are several.
    pub by_day: Vec<Score>,
}

const SOURCES: [&str; 5] = ["yesterday", "local", "provider", "provider+bias", "feed"];

/// For each horizon H, in hours: makes a forecast at `from` and every H hours after it, every 24 hours where H is longer,
/// and scores its H hours, up to `to`. At each of these moments only outcomes of slots that have ended are known, and
/// only what the source said of slots that have ended is compared with them. All rows cover the same slots; beyond the
/// end of what the source said, the rows of the source alone repeat its last day. Rows about which nothing can be said
/// are left out.
pub fn backtest(
    actual: &CarbonSeries,
    said: Said<'_>,
    from: DateTime<Utc>,
    to: DateTime<Utc>,
    horizons_h: &[u32],
    policy: &ModelPolicy,
) -> Vec<BacktestRow> {
    horizons_h.iter().flat_map(|h| at_horizon(actual, said, from, to, (*h).max(1), policy)).collect()
}

fn at_horizon(
    actual: &CarbonSeries,
    said: Said<'_>,
    from: DateTime<Utc>,
    to: DateTime<Utc>,
    horizon_h: u32,
    policy: &ModelPolicy,
) -> Vec<BacktestRow> {
    let reach = TimeDelta::hours(i64::from(horizon_h));
    let sources: Vec<usize> = (0..SOURCES.len()).filter(|i| !matches!((said, i), (Said::Nothing, 2 | 3))).collect();
    // By source and day ahead.
    let days = horizon_h.div_ceil(24) as usize;
    let mut pairs: [Vec<Vec<Pair>>; SOURCES.len()] = std::array::from_fn(|_| vec![Vec::new(); days]);
    let mut voice = Voice::new(said);
    let mut now = from;
    while now < to {
        let Some(ahead) = Slot::new(now, (now + reach).min(to)) else { break };
        let Some(past) = Slot::new(now - BACK, now) else { break };
        voice.listen(now);
        let said = voice.said();
        let seen = ended(actual, &past);
        let model = Model::fit(&ended(said, &past), voice.issues(), &seen, now, policy);
        let apart = model.apart(said, now);
        for (slot, came) in actual.overlapping(&ahead) {
            // A slot belongs to the forecast in whose hours it begins.
            if slot.start() < now || slot.start() >= ahead.end() || slot.end() > to {
                continue;
            }
            let given = over_whole(said, slot);
            let repeated = given.or_else(|| on_last_day(said, slot, now));
            let learnt = |follow, given| {
                let expected = model.expect(slot, given, &apart, follow, now)?;
                Some((expected.intensity, Some((expected.low, expected.high))))
            };
            let plain = |value: GramsPerKwh| (value, None);
            let each = [
                on_last_day(&seen, slot, now).map(plain),
                learnt(Follow::Local, None),
                repeated.map(plain),
                repeated.and_then(|given| learnt(Follow::Corrected, Some(given))),
                learnt(Follow::Feed, given),
            ];
            if sources.iter().any(|i| each[*i].is_none()) {
                continue;
            }
            let day = usize::try_from((slot.start() - now).num_days()).unwrap_or(0).min(days - 1);
            for (pairs, forecast) in pairs.iter_mut().zip(each) {
                let Some((forecast, interval)) = forecast else { continue };
                pairs[day].push(Pair { slot: *slot, forecast, interval, actual: came.value });
            }
        }
        now += reach.min(TimeDelta::days(1));
    }
    let rows = SOURCES.into_iter().zip(pairs).filter(|(_, days)| days.iter().any(|pairs| !pairs.is_empty()));
    rows.map(|(source, pairs)| {
        let by_day = if days > 1 { pairs.iter().map(|pairs| score(pairs, from)).collect() } else { Vec::new() };
        BacktestRow { source, horizon_h, score: score_parts(&pairs, from), by_day }
    })
    .collect()
}

/// The slot's mean; where a series does not reach it, that of the same time on the last day that it does.
fn on_last_day(series: &CarbonSeries, slot: &Slot, now: DateTime<Utc>) -> Option<GramsPerKwh> {
    let furthest = (slot.start() - now).num_days() + 1 + MOST_REPEATED;
    (1..=furthest).find_map(|days| {
        let day = TimeDelta::days(days);
        let earlier = Slot::new(slot.start().checked_sub_signed(day)?, slot.end().checked_sub_signed(day)?)?;
        over_whole(series, &earlier)
    })
}

/// The points that had ended by the end of `past`.
fn ended(series: &CarbonSeries, past: &Slot) -> CarbonSeries {
    let points = series.overlapping(past).iter().filter(|(slot, _)| slot.end() <= past.end());
    CarbonSeries::from_points(points.copied().collect()).0
}

/// What a source had said by a moment, as time goes on.
struct Voice<'a> {
    said: CarbonSeries,
    rolling: Option<&'a CarbonSeries>,
    heard: Vec<&'a Issued>,
    to_come: Vec<&'a Issued>,
}

impl<'a> Voice<'a> {
    fn new(said: Said<'a>) -> Self {
        let (rolling, mut to_come) = match said {
            Said::Nothing => (None, Vec::new()),
            Said::Rolling(series) => (Some(series), Vec::new()),
            Said::Issued(issued) => (None, issued.iter().collect()),
        };
        to_come.sort_by_key(|i| std::cmp::Reverse(i.issued_at));
        Self { said: CarbonSeries::default(), rolling, heard: Vec::new(), to_come }
    }

    /// Takes in what was issued by `now`. Past slots keep what was last said before they began.
    fn listen(&mut self, now: DateTime<Utc>) {
        while let Some(next) = self.to_come.pop_if(|i| i.issued_at <= now) {
            let ahead = next.series.points().iter().filter(|(slot, _)| slot.start() >= next.issued_at);
            ahead.for_each(|(slot, value)| self.said.insert(*slot, *value));
            self.heard.push(next);
        }
    }

    fn said(&self) -> &CarbonSeries {
        self.rolling.unwrap_or(&self.said)
    }

    fn issues(&self) -> &[&'a Issued] {
        &self.heard
    }
}
