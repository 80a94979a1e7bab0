//! One rule of a cap as a function of time.

use chrono::{DateTime, Datelike, Days, NaiveTime, TimeDelta, Utc, Weekday};

use crate::domain::Slot;
use crate::time::later;
use crate::units::Watts;

const DAY_S: u32 = 86_400;

/// Cap over time that is constant, weekly or piecewise linear.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Rule {
    Always(Watts),
    /// Cap in a window that starts `from` seconds after midnight on the marked days (Monday first) and lasts `lasts`
    /// seconds.
    Weekly {
        days: [bool; 7],
        from: u32,
        lasts: u32,
        cap: Watts,
    },
    /// Cap that is linear between knots in time order. Of two knots at the same time, the second applies from then on.
    /// There is no cap before the first knot and from the last knot on.
    Line(Vec<(DateTime<Utc>, Watts)>),
}

impl Rule {
    /// Creates a weekly rule for a window that starts on `days` (on all days if empty); `from` and `to` are its start
    /// and end in seconds since midnight.
    pub(super) fn weekly(days: &[Weekday], from: u32, to: u32, cap: Watts) -> Self {
        let mut marked = [days.is_empty(); 7];
        for day in days {
            marked[day.num_days_from_monday() as usize] = true;
        }
        let (from, to) = (from % DAY_S, to % DAY_S);
        let lasts = if to > from { to - from } else { DAY_S - from + to };
        Self::Weekly { days: marked, from, lasts, cap }
    }

    pub(super) fn flat(slot: &Slot, cap: Watts) -> Self {
        Self::Line(vec![(slot.start(), cap), (slot.end(), cap)])
    }

    pub(super) fn is_over(&self, now: DateTime<Utc>) -> bool {
        match self {
            Self::Line(knots) => knots.last().is_none_or(|(end, _)| *end <= now),
            Self::Always(_) | Self::Weekly { .. } => false,
        }
    }

    pub(super) fn at(&self, t: DateTime<Utc>) -> Option<Watts> {
        match self {
            Self::Always(cap) => Some(*cap),
            Self::Weekly { cap, .. } => self.around(t, t).any(|slot| slot.contains(t)).then_some(*cap),
            Self::Line(knots) => {
                let next = knots.partition_point(|(at, _)| *at <= t);
                let (from, to) = (knots.get(next.checked_sub(1)?)?, knots.get(next)?);
                Some(between(*from, *to, t))
            }
        }
    }

    /// Returns the lowest cap within a slot; `None` without a cap.
    pub(super) fn over(&self, slot: &Slot) -> Option<Watts> {
        match self {
            Self::Always(cap) => Some(*cap),
            Self::Weekly { cap, .. } => {
                // Nine days contain every weekly window at least once.
                let end = slot.end().min(later(slot.start(), TimeDelta::days(9)));
                let meets = |w: Slot| w.intersection(slot).is_some();
                self.around(slot.start(), end).any(meets).then_some(*cap)
            }
            Self::Line(knots) => {
                let piece = |pair: &[(DateTime<Utc>, Watts)]| {
                    let (from, to) = (pair[0], pair[1]);
                    let shared = Slot::new(from.0, to.0)?.intersection(slot)?;
                    Some(between(from, to, shared.start()).min(between(from, to, shared.end())))
                };
                knots.windows(2).filter_map(piece).reduce(Watts::min)
            }
        }
    }

    /// Returns the times strictly between `from` and `to` at which the cap starts, changes its slope, or ends.
    pub(super) fn boundaries(&self, from: DateTime<Utc>, to: DateTime<Utc>) -> Vec<DateTime<Utc>> {
        let inside = |t: &DateTime<Utc>| from < *t && *t < to;
        match self {
            Self::Weekly { .. } => {
                self.around(from, to).flat_map(|slot| [slot.start(), slot.end()]).filter(inside).collect()
            }
            Self::Always(_) | Self::Line(_) => self.knots().filter(inside).collect(),
        }
    }

    /// Returns the times of the knots of a piecewise linear rule; none for other rules.
    pub(super) fn knots(&self) -> impl Iterator<Item = DateTime<Utc>> + '_ {
        let knots = match self {
            Self::Line(knots) => knots.as_slice(),
            Self::Always(_) | Self::Weekly { .. } => &[],
        };
        knots.iter().map(|(at, _)| *at)
    }

    /// Returns the windows of a weekly rule that start on the days from the day before `from` to the day of `to`; none
    /// for other rules.
    fn around(&self, from: DateTime<Utc>, to: DateTime<Utc>) -> impl Iterator<Item = Slot> + '_ {
        let first = from.date_naive().checked_sub_days(Days::new(1)).unwrap_or(from.date_naive());
        let days = first.iter_days().take_while(move |day| *day <= to.date_naive());
        days.filter_map(move |day| {
            let Self::Weekly { days, from, lasts, .. } = self else { return None };
            let marked = days[day.weekday().num_days_from_monday() as usize];
            let midnight = day.and_time(NaiveTime::MIN).and_utc();
            let start = later(midnight, TimeDelta::seconds(i64::from(*from)));
            let slot = Slot::new(start, later(start, TimeDelta::seconds(i64::from(*lasts))));
            slot.filter(|_| marked)
        })
    }
}

/// Interpolates the cap at `t` linearly between two knots, each a time and a cap.
fn between((from, low): (DateTime<Utc>, Watts), (to, high): (DateTime<Utc>, Watts), t: DateTime<Utc>) -> Watts {
    if t <= from || low == high {
        return low;
    }
    if t >= to {
        return high;
    }
    let part = (t - from).as_seconds_f64() / (to - from).as_seconds_f64();
    low + (high - low) * part
}
