//! Forecasts of the past, made with what was known then, and scored.

use chrono::{DateTime, TimeDelta, Utc};
use serde::Serialize;

use super::model::{Follow, Model, ModelPolicy};
use super::score::{Pair, Score, over_whole, score};
use crate::domain::{CarbonSeries, Issued, Slot};
use crate::units::GramsPerKwh;

/// Older values are not looked at: what a model learns from, and a day more for the slots cut by it.
const BACK: TimeDelta = TimeDelta::days(29);

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
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct BacktestRow {
    /// `yesterday` (the same time a day before), `local`, `provider`, `provider+bias`, or `feed`: what the daemon
    /// would use.
    pub source: &'static str,
    /// A forecast is made every so many hours, and all of them are scored.
    pub horizon_h: u32,
    /// How good it was.
    #[serde(flatten)]
    pub score: Score,
}

const SOURCES: [&str; 5] = ["yesterday", "local", "provider", "provider+bias", "feed"];

/// For each horizon H, in hours: makes a forecast at `from` and every H hours after it, and scores its H hours, up to
/// `to`. At each of these moments only outcomes of slots that have ended are known, and only what the source said of
/// slots that have ended is compared with them. Rows about which nothing can be said are left out.
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
    let step = TimeDelta::hours(i64::from(horizon_h));
    let mut pairs: [Vec<Pair>; SOURCES.len()] = Default::default();
    let mut voice = Voice::new(said);
    let mut now = from;
    while now < to {
        let Some(ahead) = Slot::new(now, (now + step).min(to)) else { break };
        let Some(past) = Slot::new(now - BACK, now) else { break };
        let said = voice.until(now);
        let seen = ended(actual, &past);
        let model = Model::fit(&ended(said, &past), &seen, now, policy);
        for (slot, came) in actual.overlapping(&ahead) {
            // A slot belongs to the forecast in whose hours it begins.
            if slot.start() < now || slot.start() >= ahead.end() || slot.end() > to {
                continue;
            }
            let given = over_whole(said, slot);
            let yesterday = earlier(slot).and_then(|slot| over_whole(&seen, &slot));
            let learnt = |follow| {
                let given = if follow == Follow::Local { None } else { given };
                let expected = model.expect(slot, given, follow, now)?;
                Some((expected.intensity, Some((expected.low, expected.high))))
            };
            let plain = |value: GramsPerKwh| (value, None);
            let each = [
                yesterday.map(plain),
                learnt(Follow::Local),
                given.map(plain),
                given.and_then(|_| learnt(Follow::Corrected)),
                learnt(Follow::Feed),
            ];
            for (pairs, forecast) in pairs.iter_mut().zip(each) {
                let Some((forecast, interval)) = forecast else { continue };
                pairs.push(Pair { slot: *slot, forecast, interval, actual: came.value });
            }
        }
        now += step;
    }
    let rows = SOURCES.into_iter().zip(pairs).filter(|(_, pairs)| !pairs.is_empty());
    rows.map(|(source, pairs)| BacktestRow { source, horizon_h, score: score(&pairs, from) }).collect()
}

/// The points that had ended by the end of `past`.
fn ended(series: &CarbonSeries, past: &Slot) -> CarbonSeries {
    let points = series.overlapping(past).iter().filter(|(slot, _)| slot.end() <= past.end());
    CarbonSeries::from_points(points.copied().collect()).0
}

fn earlier(slot: &Slot) -> Option<Slot> {
    let day = TimeDelta::days(1);
    Slot::new(slot.start().checked_sub_signed(day)?, slot.end().checked_sub_signed(day)?)
}

/// What a source had said by a moment, as time goes on.
struct Voice<'a> {
    said: CarbonSeries,
    rolling: Option<&'a CarbonSeries>,
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
        Self { said: CarbonSeries::default(), rolling, to_come }
    }

    /// Past slots keep what was last said before they began.
    fn until(&mut self, now: DateTime<Utc>) -> &CarbonSeries {
        while let Some(next) = self.to_come.pop_if(|i| i.issued_at <= now) {
            let ahead = next.series.points().iter().filter(|(slot, _)| slot.start() >= next.issued_at);
            ahead.for_each(|(slot, value)| self.said.insert(*slot, *value));
        }
        self.rolling.unwrap_or(&self.said)
    }
}
