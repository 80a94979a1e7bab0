//! Drift detection: compares a job's recent throughput and power with its profile.

use std::cmp::Ordering;
use std::collections::VecDeque;

use super::point::Chunk;
use crate::time::Monotonic;
use crate::units::{Joules, SamplesPerSecond, Seconds, Watts};

/// Minimum number of chunks (times between two reports) for drift: a chunk may hold one training step more or less than
/// usual.
const LEAST_CHUNKS: usize = 4;

/// Throughput and power in the profile that chunks (times between two reports) are compared with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Baseline {
    pub(super) throughput: SamplesPerSecond,
    pub(super) power: Watts,
}

/// Progress and energy between two reports, with what the profile expected for them.
#[derive(Clone, Copy, Debug)]
struct ComparedChunk {
    /// Time of the first of the two reports.
    from: Monotonic,
    span: Seconds,
    /// Time that the samples take at the profile's throughput.
    expected_span: Seconds,
    energy: Joules,
    /// Energy in the same time at the profile's power.
    expected_energy: Joules,
}

/// Difference between a job and its profile.
#[derive(Clone, Debug)]
pub(super) struct Drift {
    /// Time from which on the job differs.
    pub(super) since: Monotonic,
    /// Throughput relative to the profile: `Greater` if faster, `Equal` if only power differs.
    pub(super) throughput: Ordering,
    /// The difference in words.
    pub(super) why: String,
}

/// Most recent chunks of training, at all settings. A plan that follows a changed throughput may change the setting so
/// often that no single setting shows the drift.
#[derive(Clone, Debug, Default)]
pub(super) struct DriftWindow {
    chunks: VecDeque<ComparedChunk>,
}

impl DriftWindow {
    /// Adds a chunk (time between two reports, the first at the time `from`) and drops the oldest ones that are not
    /// needed to cover `span`. `known` is the profile's point for the setting in force or, in a sweep, for the ceiling.
    pub(super) fn push(&mut self, from: Monotonic, chunk: &Chunk, known: Baseline, span: Seconds) {
        self.chunks.push_back(ComparedChunk {
            from,
            span: chunk.span,
            expected_span: chunk.samples_done / known.throughput,
            energy: chunk.energy.iter().copied().sum(),
            expected_energy: known.power * chunk.energy_span,
        });
        while self.chunks.len() > LEAST_CHUNKS && self.span() - self.chunks[0].span >= span {
            self.chunks.pop_front();
        }
    }

    /// Returns the drift if throughput or power differed from the profile by more than
    /// `drift` (relative) for `span`. Each quarter of the span must differ in the same direction, so that a single slow
    /// period does not count as drift.
    pub(super) fn drifted(&mut self, drift: f64, span: Seconds) -> Option<Drift> {
        let length = self.span();
        if length < span || self.chunks.len() < LEAST_CHUNKS {
            return None;
        }
        let quarters = quarters(self.chunks.make_contiguous(), length);
        let off = |of: fn(&[ComparedChunk]) -> Option<f64>| {
            let each: Vec<f64> = quarters.iter().filter_map(|q| Some(of(q)? - 1.0)).collect();
            let drifted = !each.is_empty() && (each.iter().all(|o| *o > drift) || each.iter().all(|o| *o < -drift));
            (drifted, each.iter().sum::<f64>() / each.len().max(1) as f64)
        };
        let (throughput, power) = (off(relative_rate), off(relative_power));
        let differs = |c: &ComparedChunk| {
            let one = std::slice::from_ref(c);
            let beyond = |(drifted, mean): (bool, f64), of: Option<f64>| {
                drifted && of.is_some_and(|of| (of - 1.0) * mean.signum() > drift)
            };
            beyond(throughput, relative_rate(one)) || beyond(power, relative_power(one))
        };
        // The first quarter may hold some of the time before the change.
        let first = self.chunks.iter().find(|c| differs(c)).or(self.chunks.front())?;
        (throughput.0 || power.0).then(|| Drift {
            since: first.from,
            throughput: if throughput.0 { throughput.1.total_cmp(&0.0) } else { Ordering::Equal },
            why: format!(
                "throughput differs from the profile by {:+.1} % and power by {:+.1} %, for {:.0} s",
                100.0 * throughput.1,
                100.0 * power.1,
                length.get()
            ),
        })
    }

    /// Returns true if throughput or power differed from the profile by more than `drift` (relative) in the newest
    /// quarter of `span`: the job may have changed just now.
    pub(super) fn newest_differs(&mut self, drift: f64, span: Seconds) -> bool {
        let mut newest = Seconds::ZERO;
        let earlier = |c: &&ComparedChunk| {
            newest += c.span;
            newest < span * 0.25
        };
        let count = self.chunks.iter().rev().take_while(earlier).count() + 1;
        let chunks = self.chunks.make_contiguous();
        let newest = &chunks[chunks.len().saturating_sub(count)..];
        [relative_rate(newest), relative_power(newest)].into_iter().flatten().any(|of| (of - 1.0).abs() > drift)
    }

    /// Returns true if throughput and power differed from the profile by at most `drift` (relative) on average over `span`.
    pub(super) fn agrees(&mut self, drift: f64, span: Seconds) -> bool {
        let is_long = self.span() >= span;
        let chunks = self.chunks.make_contiguous();
        let all = [relative_rate(chunks), relative_power(chunks)];
        is_long && all.into_iter().flatten().all(|of| (of - 1.0).abs() <= drift)
    }

    /// Returns true if throughput exceeded the profile by more than `drift` (relative) on average.
    pub(super) fn is_faster(&mut self, drift: f64) -> bool {
        relative_rate(self.chunks.make_contiguous()).is_some_and(|rate| rate > 1.0 + drift)
    }

    fn span(&self) -> Seconds {
        self.chunks.iter().map(|c| c.span).sum()
    }
}

fn relative_rate(chunks: &[ComparedChunk]) -> Option<f64> {
    let span: Seconds = chunks.iter().map(|c| c.span).sum();
    (span > Seconds::ZERO).then(|| chunks.iter().map(|c| c.expected_span).sum::<Seconds>() / span)
}

fn relative_power(chunks: &[ComparedChunk]) -> Option<f64> {
    let expected: Joules = chunks.iter().map(|c| c.expected_energy).sum();
    (expected > Joules::ZERO).then(|| chunks.iter().map(|c| c.energy).sum::<Joules>() / expected)
}

/// Splits the chunks (times between two reports) into up to four successive parts of about equal duration.
fn quarters(chunks: &[ComparedChunk], span: Seconds) -> Vec<&[ComparedChunk]> {
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
