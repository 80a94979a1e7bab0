//! Drift detection: compares a job's recent throughput and power with its profile.

use std::collections::VecDeque;

use super::point::Chunk;
use crate::units::{Joules, Samples, SamplesPerSecond, Seconds, Watts};

/// Throughput and power in the profile for a setting when that setting came into force.
#[derive(Clone, Copy, Debug)]
pub(super) struct Baseline {
    pub(super) throughput: SamplesPerSecond,
    pub(super) power: Watts,
}

/// Most recent chunks (times between two reports) at the setting in force.
#[derive(Clone, Debug, Default)]
pub(super) struct DriftWindow {
    chunks: VecDeque<Chunk>,
}

impl DriftWindow {
    /// Adds a chunk (time between two reports) and drops the oldest ones that are not needed to cover `span`.
    pub(super) fn push(&mut self, chunk: Chunk, span: Seconds) {
        self.chunks.push_back(chunk);
        while self.chunks.len() > 1 && self.span() - self.chunks[0].span >= span {
            self.chunks.pop_front();
        }
    }

    /// Returns the reason for profiling the job again if throughput or power differed from the profile by more than
    /// `drift` (relative) for `span`. Each quarter of the span must differ in the same direction, so that a single slow
    /// period does not count as drift.
    pub(super) fn drifted(&mut self, known: Baseline, drift: f64, span: Seconds) -> Option<String> {
        let length = self.span();
        if length < span {
            return None;
        }
        let quarters = quarters(self.chunks.make_contiguous(), length);
        let off = |of: fn(&[Chunk]) -> Option<f64>, known: f64| {
            let each: Vec<f64> = quarters.iter().filter_map(|q| Some(of(q)? / known - 1.0)).collect();
            let drifted = !each.is_empty() && (each.iter().all(|o| *o > drift) || each.iter().all(|o| *o < -drift));
            (drifted, each.iter().sum::<f64>() / each.len().max(1) as f64)
        };
        let (throughput, power) = (off(mean_rate, known.throughput.get()), off(mean_power, known.power.get()));
        (throughput.0 || power.0).then(|| {
            format!(
                "throughput differs from the profile by {:+.1} % and power by {:+.1} %, for {:.0} s",
                100.0 * throughput.1,
                100.0 * power.1,
                length.get()
            )
        })
    }

    fn span(&self) -> Seconds {
        self.chunks.iter().map(|c| c.span).sum()
    }
}

fn mean_rate(chunks: &[Chunk]) -> Option<f64> {
    let span: Seconds = chunks.iter().map(|c| c.span).sum();
    (span > Seconds::ZERO).then(|| chunks.iter().map(|c| c.samples_done).sum::<Samples>().get() / span.get())
}

fn mean_power(chunks: &[Chunk]) -> Option<f64> {
    let span: Seconds = chunks.iter().map(|c| c.energy_span).sum();
    (span > Seconds::ZERO).then(|| chunks.iter().flat_map(|c| &c.energy).copied().sum::<Joules>().get() / span.get())
}

/// Splits the chunks (times between two reports) into up to four successive parts of about equal duration.
fn quarters(chunks: &[Chunk], span: Seconds) -> Vec<&[Chunk]> {
    let mut runs = Vec::with_capacity(4);
    let (mut start, mut passed) = (0, Seconds::ZERO);
    for (i, chunk) in chunks.iter().enumerate() {
        passed += chunk.span;
        if passed >= span * 0.25 * (runs.len() + 1) as f64 || i + 1 == chunks.len() {
            runs.push(&chunks[start..=i]);
            start = i + 1;
        }
    }
    runs
}
