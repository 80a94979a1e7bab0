//! Values over half-open UTC time slots of any length.

use std::collections::BTreeMap;
use std::fmt;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::units::Seconds;

/// A half-open, non-empty span of UTC time, `start ≤ t < end`, which may begin and end at any time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Slot {
    start: DateTime<Utc>,
    end: DateTime<Utc>,
}

impl Slot {
    /// Creates a slot; `None` unless `start < end`.
    pub fn new(start: DateTime<Utc>, end: DateTime<Utc>) -> Option<Self> {
        (start < end).then_some(Self { start, end })
    }

    /// Returns the start, which belongs to the slot.
    pub fn start(&self) -> DateTime<Utc> {
        self.start
    }

    /// Returns the end, which no longer belongs to the slot.
    pub fn end(&self) -> DateTime<Utc> {
        self.end
    }

    /// Returns the duration, which is above zero.
    pub fn duration(&self) -> Seconds {
        Seconds::from_delta(self.end - self.start)
    }

    /// Returns true if `start ≤ t < end`.
    pub fn contains(&self, t: DateTime<Utc>) -> bool {
        self.start <= t && t < self.end
    }

    /// Returns the time that two slots share; `None` if they do not overlap.
    pub fn intersection(&self, other: &Self) -> Option<Self> {
        Self::new(self.start.max(other.start), self.end.min(other.end))
    }
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.start.format("%FT%TZ"), self.end.format("%FT%TZ"))
    }
}

/// Problem found in the points that a series is made from, and how it was resolved.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SeriesProblem {
    /// Points are not in time order; they were sorted.
    #[error("points are not in time order; sorted (first out of order: {0})")]
    Unsorted(Slot),
    /// Two points cover the same time; the one later in the input takes precedence.
    #[error("slot {second} overlaps {first}; where they overlap, the value that comes later in the input is used")]
    Overlap {
        /// Slot that starts first.
        first: Slot,
        /// Slot that starts within `first`.
        second: Slot,
    },
    /// A span between two points has no value; the series has none there either.
    #[error("no value for {0}")]
    Gap(Slot),
}

/// Values over non-overlapping slots in time order. A gap between slots means that no value is known, never zero.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TimeSeries<V> {
    points: Vec<(Slot, V)>,
}

impl<V> Default for TimeSeries<V> {
    fn default() -> Self {
        Self { points: Vec::new() }
    }
}

impl<V: Clone> TimeSeries<V> {
    /// Creates a series from `points` in any order and returns the problems found. Where points overlap, the later one
    /// in the input takes precedence. Never fails.
    pub fn from_points(points: Vec<(Slot, V)>) -> (Self, Vec<SeriesProblem>) {
        let mut problems = Vec::new();
        if let Some(pair) = points.windows(2).find(|pair| pair[1].0.start < pair[0].0.start) {
            problems.push(SeriesProblem::Unsorted(pair[1].0));
        }
        let in_order = points.windows(2).all(|pair| pair[0].0.end <= pair[1].0.start);
        let points = if in_order { points } else { layered(points, &mut problems) };
        let series = Self { points };
        problems.extend(series.gaps().map(SeriesProblem::Gap));
        (series, problems)
    }

    /// Sets the value of `slot`. Earlier values keep only the time outside `slot`.
    pub fn insert(&mut self, slot: Slot, value: V) {
        self.put(slot, Some(value));
    }

    /// Removes all values within `slot`. Values that extend beyond `slot` keep the time outside it.
    pub fn remove(&mut self, slot: Slot) {
        self.put(slot, None);
    }

    fn put(&mut self, slot: Slot, value: Option<V>) {
        let from = self.points.partition_point(|(s, _)| s.end <= slot.start);
        let to = self.points.partition_point(|(s, _)| s.start < slot.end).max(from);
        let mut replacement = Vec::with_capacity(3);
        if let Some((first, v)) = self.points[from..to].first()
            && let Some(head) = Slot::new(first.start, slot.start)
        {
            replacement.push((head, v.clone()));
        }
        replacement.extend(value.map(|value| (slot, value)));
        if let Some((last, v)) = self.points[from..to].last()
            && let Some(tail) = Slot::new(slot.end, last.end)
        {
            replacement.push((tail, v.clone()));
        }
        self.points.splice(from..to, replacement);
    }

    /// Inserts all points of `newer`, which take precedence over the points of this series.
    pub fn overwrite(&mut self, newer: &Self) {
        let older = std::mem::take(&mut self.points);
        self.points.reserve(older.len() + newer.points.len());
        let mut newer = newer.points.iter().peekable();
        for (slot, value) in older {
            // Start of the part of the slot that is not processed yet.
            let mut at = slot.start;
            while at < slot.end {
                self.points.extend(std::iter::from_fn(|| newer.next_if(|(s, _)| s.end <= at)).cloned());
                let next = newer.peek().map(|(s, _)| *s).filter(|s| s.start < slot.end);
                let free = Slot::new(at, next.map_or(slot.end, |s| s.start));
                self.points.extend(free.map(|free| (free, value.clone())));
                at = next.map_or(slot.end, |s| s.end);
            }
        }
        self.points.extend(newer.cloned());
    }

    /// Returns the points that overlap `span`, cut to `span`.
    pub fn within(&self, span: &Slot) -> Self {
        let points = self.overlapping(span).iter();
        Self { points: points.filter_map(|(s, v)| Some((s.intersection(span)?, v.clone()))).collect() }
    }

    /// Drops points that ended at or before `t`. A point that contains `t` remains whole.
    pub fn forget_before(&mut self, t: DateTime<Utc>) {
        let gone = self.points.partition_point(|(s, _)| s.end <= t);
        self.points.drain(..gone);
    }
}

/// Inserts points one after another, each over those inserted before it, and returns the resulting pieces in time
/// order. Uses a tree because an insertion into a list would move the rest of the list each time.
fn layered<V: Clone>(points: Vec<(Slot, V)>, problems: &mut Vec<SeriesProblem>) -> Vec<(Slot, V)> {
    let mut pieces: BTreeMap<DateTime<Utc>, (Slot, V)> = BTreeMap::new();
    for (slot, value) in points {
        let before = pieces.range_mut(..slot.start).next_back().map(|(_, piece)| piece);
        let mut first = None;
        let mut tail = None;
        if let Some(piece) = before.filter(|(s, _)| slot.start < s.end) {
            first = Some(piece.0);
            tail = Slot::new(slot.end, piece.0.end).map(|tail| (tail, piece.1.clone()));
            piece.0.end = slot.start;
        }
        while let Some(start) = pieces.range(slot.start..slot.end).next().map(|(start, _)| *start) {
            let Some((under, v)) = pieces.remove(&start) else { break };
            first = first.or(Some(under));
            tail = Slot::new(slot.end, under.end).map(|tail| (tail, v));
        }
        if let Some(first) = first {
            problems.push(SeriesProblem::Overlap { first, second: slot });
        }
        pieces.insert(slot.start, (slot, value));
        pieces.extend(tail.map(|tail| (tail.0.start, tail)));
    }
    pieces.into_values().collect()
}

impl<V> TimeSeries<V> {
    /// Returns the points in time order.
    pub fn points(&self) -> &[(Slot, V)] {
        &self.points
    }

    /// Returns true if the series has no points.
    pub fn is_empty(&self) -> bool {
        self.points.is_empty()
    }

    /// Returns the point whose slot contains `t`; `None` in a gap.
    pub fn at(&self, t: DateTime<Utc>) -> Option<&(Slot, V)> {
        let next = self.points.partition_point(|(s, _)| s.end <= t);
        self.points.get(next).filter(|(s, _)| s.contains(t))
    }

    /// Returns the start of the first point; `None` if the series is empty.
    pub fn start(&self) -> Option<DateTime<Utc>> {
        self.points.first().map(|(s, _)| s.start)
    }

    /// Returns the end of the last point; `None` if the series is empty.
    pub fn end(&self) -> Option<DateTime<Utc>> {
        self.points.last().map(|(s, _)| s.end)
    }

    /// Returns the gaps between points.
    pub fn gaps(&self) -> impl Iterator<Item = Slot> + '_ {
        self.points.windows(2).filter_map(|pair| Slot::new(pair[0].0.end, pair[1].0.start))
    }

    /// Returns the points that overlap `span`, with their whole slots.
    pub fn overlapping(&self, span: &Slot) -> &[(Slot, V)] {
        let from = self.points.partition_point(|(s, _)| s.end <= span.start);
        let to = self.points.partition_point(|(s, _)| s.start < span.end);
        &self.points[from..to.max(from)]
    }

    /// Returns the same slots with converted values.
    pub fn map<W>(&self, mut f: impl FnMut(&V) -> W) -> TimeSeries<W> {
        TimeSeries { points: self.points.iter().map(|(s, v)| (*s, f(v))).collect() }
    }

    /// Returns the time-weighted mean over the covered part of `span` (first) and the duration of that part (second);
    /// `None` if no part is covered.
    pub fn mean_over(&self, span: &Slot, value: impl Fn(&V) -> f64) -> Option<(f64, Seconds)> {
        let (mut sum, mut covered) = (0.0, Seconds::ZERO);
        for (slot, v) in self.overlapping(span) {
            if let Some(part) = slot.intersection(span) {
                sum += value(v) * part.duration().get();
                covered += part.duration();
            }
        }
        (covered > Seconds::ZERO).then(|| (sum / covered.get(), covered))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn slot(from: i64, to: i64) -> Slot {
        let at = |minutes: i64| DateTime::UNIX_EPOCH + chrono::TimeDelta::minutes(minutes);
        Slot::new(at(from), at(to)).expect("from < to")
    }

    #[test]
    fn slots_are_half_open_and_never_empty() {
        let s = slot(20, 50);
        assert!(s.contains(s.start()) && !s.contains(s.end()));
        assert_eq!(Slot::new(s.start(), s.start()), None);
        assert_eq!(s.duration(), Seconds::new(1800.0));
    }

    #[test]
    fn broken_input_gives_a_series_and_its_problems() {
        let (series, problems) = TimeSeries::from_points(vec![
            (slot(30, 60), 'b'),
            (slot(0, 30), 'a'),
            (slot(50, 80), 'c'),
            (slot(90, 100), 'd'),
        ]);
        let kept: Vec<_> = series.points().to_vec();
        assert_eq!(kept, [(slot(0, 30), 'a'), (slot(30, 50), 'b'), (slot(50, 80), 'c'), (slot(90, 100), 'd')]);
        assert_eq!(
            problems,
            [
                SeriesProblem::Unsorted(slot(0, 30)),
                SeriesProblem::Overlap { first: slot(30, 60), second: slot(50, 80) },
                SeriesProblem::Gap(slot(80, 90)),
            ]
        );
        assert_eq!(series.at(slot(85, 86).start()), None);
    }

    /// Inserts twenty thousand slots in the worst order, each overlapping another.
    #[test]
    fn many_points_are_sorted_quickly_in_any_order() {
        let n = 20_000;
        let falling = (0..n).map(|i| (slot(n - i, n - i + 2), i)).collect();
        let (series, problems) = TimeSeries::from_points(falling);
        assert_eq!((series.points().len(), problems.len()), (20_000, 20_000));
        let nested = (0..n).map(|i| (slot(i, 3 * n - i), i)).collect();
        let (mut series, problems) = TimeSeries::from_points(nested);
        assert_eq!((series.points().len(), problems.len()), (39_999, 19_999));
        let between = (0..n).map(|i| {
            (
                Slot::new(slot(i, i + 1).start(), slot(i, i + 1).start() + chrono::TimeDelta::seconds(1))
                    .expect("a second"),
                i,
            )
        });
        series.overwrite(&TimeSeries::from_points(between.collect()).0);
        assert_eq!(series.points().len(), 59_999);
    }

    proptest! {
        #[test]
        fn inserting_many_equals_inserting_one_by_one(
            older in prop::collection::vec((0i64..60, 1i64..20, 0u8..9), 0..20),
            newer in prop::collection::vec((0i64..60, 1i64..20, 10u8..19), 0..20),
        ) {
            let points = |writes: &[(i64, i64, u8)]| -> Vec<_> {
                writes.iter().map(|&(from, length, value)| (slot(from, from + length), value)).collect()
            };
            let (mut at_once, problems) = TimeSeries::from_points(points(&older));
            let mut one_by_one = TimeSeries::default();
            let mut overlaps = Vec::new();
            for (slot, value) in points(&older) {
                let first = one_by_one.overlapping(&slot).first().map(|(s, _)| *s);
                overlaps.extend(first.map(|first| SeriesProblem::Overlap { first, second: slot }));
                one_by_one.insert(slot, value);
            }
            prop_assert_eq!(&at_once, &one_by_one);
            let expected: Vec<_> = problems.into_iter().filter(|p| matches!(p, SeriesProblem::Overlap { .. })).collect();
            prop_assert_eq!(expected, overlaps);
            let newer = TimeSeries::from_points(points(&newer)).0;
            at_once.overwrite(&newer);
            newer.points().iter().for_each(|(slot, value)| one_by_one.insert(*slot, *value));
            prop_assert_eq!(at_once, one_by_one);
        }

        #[test]
        fn a_series_answers_like_a_list_of_minutes(writes in prop::collection::vec((0i64..60, 1i64..20, 0u8..9), 0..20)) {
            let mut minutes = [None; 100];
            let mut series = TimeSeries::default();
            for &(from, length, value) in &writes {
                series.insert(slot(from, from + length), value);
                minutes[from as usize..(from + length) as usize].fill(Some(value));
            }
            for (minute, expected) in (0i64..).zip(minutes) {
                let found = series.at(slot(minute, minute + 1).start());
                prop_assert_eq!(found.map(|(_, v)| *v), expected);
            }
            for pair in series.points().windows(2) {
                prop_assert!(pair[0].0.end() <= pair[1].0.start());
            }
            let covered = minutes.iter().flatten().count();
            let mean = series.mean_over(&slot(0, 100), |v| f64::from(*v));
            prop_assert_eq!(mean.map(|(_, s)| s.get()).unwrap_or(0.0), covered as f64 * 60.0);
        }
    }
}
