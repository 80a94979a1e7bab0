//! Detects dips in a job's power: successive readings below the training power at the setting in force.
//!
//! Power shows a pause of the job at once, progress only with the next report. Both signals are needed: a job may draw
//! less power for a while without pausing, so progress decides whether a dip is a pause.

use std::ops::Range;

use crate::units::{Joules, Seconds, Watts};

/// Minimum relative difference by which each power reading of a dip is below the training power.
const DEPTH: f64 = 0.08;
/// Minimum number of a dip's readings, and minimum duration of all of them. A single short reading may be low only
/// because the energy counter updates in steps of up to 100 ms.
const LEAST_READINGS: usize = 3;
const LEAST_SPAN: Seconds = Seconds::new(0.5);

/// Minimum duration of readings for a reliable mean power: energy counters update every 20 to 100 ms, so much of a
/// shorter reading's energy may be counted in the next one. It is below 1 s, the usual time between reports.
pub(super) const SUFFICIENT: Seconds = Seconds::new(0.9);

/// Energy of all GPUs between two readings of their counters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Reading {
    pub(super) span: Seconds,
    pub(super) energy: Joules,
    /// Training power at the setting in force; `None` if unknown.
    pub(super) training: Option<Watts>,
}

impl Reading {
    fn power(&self) -> Watts {
        self.energy / self.span
    }

    pub(super) fn is_low(&self) -> bool {
        self.span > Seconds::ZERO && self.training.is_some_and(|level| self.power() < level * (1.0 - DEPTH))
    }
}

/// Time and energy of power dips, which count as pauses of the job if the job's progress confirms them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Dip {
    /// Total duration.
    pub span: Seconds,
    /// Energy of all GPUs in that time.
    pub energy: Joules,
}

impl Dip {
    pub(super) fn times(self, part: f64) -> Self {
        Self { span: self.span * part, energy: self.energy * part }
    }

    pub(super) fn add(&mut self, other: Self) {
        self.span += other.span;
        self.energy += other.energy;
    }
}

/// Returns the index range of each dip. Omits runs of fewer than three readings or less than half a second: their power
/// is unreliable, and only progress can show such pauses.
pub(super) fn runs(readings: &[Reading]) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < readings.len() {
        let end = (at..readings.len()).find(|i| !readings[*i].is_low()).unwrap_or(readings.len());
        let span: Seconds = readings[at..end].iter().map(|reading| reading.span).sum();
        if end >= at + LEAST_READINGS && span >= LEAST_SPAN {
            found.push(at..end);
        }
        at = end + 1;
    }
    found
}

/// Returns the parts of readings that lie in the dip `run`, each with the index of its reading. A dip usually begins
/// and ends in the middle of a reading. How much of an outermost reading is training follows from the power of its
/// neighbour further inside the dip. The neighbour outside the dip is evaluated together with the outermost reading, so
/// that their noise averages out.
pub(super) fn parts(readings: &[Reading], run: Range<usize>) -> Vec<(usize, Dip)> {
    let (first, last) = (run.start, run.end - 1);
    let inner = (first + 1..last).map(|i| (i, Dip { span: readings[i].span, energy: readings[i].energy }));
    let before = edge(readings, first, first.checked_sub(1), first + 1);
    let after = edge(readings, last, Some(last + 1).filter(|i| *i < readings.len()), last - 1);
    before.into_iter().chain(inner).chain(after).collect()
}

fn edge(readings: &[Reading], place: usize, outside: Option<usize>, further_in: usize) -> Vec<(usize, Dip)> {
    let missing =
        |i: usize| readings[i].training.map_or(Joules::ZERO, |level| level * readings[i].span - readings[i].energy);
    let depth = readings[place].training.unwrap_or(Watts::ZERO) - readings[further_in].power();
    if depth <= Watts::ZERO {
        return Vec::new();
    }
    let all = (missing(place) + outside.map_or(Joules::ZERO, missing)) / depth;
    let within = |i: usize, span: Seconds| {
        let span = span.min(readings[i].span).max(Seconds::ZERO);
        (i, Dip { span, energy: readings[further_in].power() * span })
    };
    let beyond = outside.map(|i| within(i, all - readings[place].span));
    [Some(within(place, all)), beyond].into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn readings(powers: &[f64]) -> Vec<Reading> {
        let reading = |watts: &f64| Reading {
            span: Seconds::new(1.0),
            energy: Joules::new(*watts),
            training: Some(Watts::new(200.0)),
        };
        powers.iter().map(reading).collect()
    }

    fn total(readings: &[Reading]) -> (f64, f64) {
        let mut sum = Dip::default();
        let all = runs(readings).into_iter().flat_map(|run| parts(readings, run));
        all.for_each(|(_, dip)| sum.add(dip));
        (sum.span.get(), sum.energy.get())
    }

    #[test]
    fn a_pause_begins_and_ends_within_a_reading() {
        // 5.5 s at 60 W: 0.2 s of the second reading, 0.3 s of the last.
        let (span, energy) = total(&readings(&[200.0, 172.0, 60.0, 60.0, 60.0, 60.0, 60.0, 158.0, 200.0]));
        assert!((span - 5.5).abs() < 1e-9 && (energy - 330.0).abs() < 1e-9, "{span} s, {energy} J");
    }

    #[test]
    fn a_reading_partly_in_a_dip_counts_in_part() {
        let (span, _) = total(&readings(&[200.0, 193.0, 60.0, 60.0, 60.0, 200.0]));
        assert!((span - 3.05).abs() < 1e-9, "{span}");
    }

    #[test]
    fn noise_neither_creates_nor_shortens_dips() {
        assert_eq!(total(&readings(&[200.0, 190.0, 205.0, 188.0, 195.0])).0, 0.0);
        let (span, _) = total(&readings(&[200.0, 160.0, 157.0, 163.0, 158.0, 160.0, 201.0]));
        assert!((span - 5.0).abs() < 0.2, "{span}");
    }

    #[test]
    fn short_dips_and_unknown_training_power_are_ignored() {
        assert_eq!(total(&readings(&[200.0, 100.0, 90.0, 200.0])).0, 0.0);
        let unknown: Vec<Reading> = readings(&[60.0; 5]).into_iter().map(|r| Reading { training: None, ..r }).collect();
        assert_eq!(total(&unknown).0, 0.0);
    }
}
