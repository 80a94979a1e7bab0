//! Uninterrupted measurement at one setting, without chunks that contain the job's own pauses.

use std::collections::VecDeque;

use super::pause_detection::{FEW, IntervalWork, judge};
use super::point::{Chunk, PointStats};

/// Number of chunks that are judged again with each new one.
const KEPT: usize = 32;

/// Verdict on a chunk.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum ChunkVerdict {
    /// Training at the usual rate.
    Training,
    /// Paused: almost no progress.
    Pause,
    /// Slower than usual: partly paused, or the job has changed.
    Slow,
}

/// An uninterrupted measurement at one setting.
#[derive(Clone, Debug)]
pub(super) struct Measurement {
    /// True if it measures the ceiling to close a sweep.
    pub(super) closing: bool,
    /// Earlier measurements and chunks that are no longer judged.
    base: PointStats,
    chunks: VecDeque<Chunk>,
}

impl Measurement {
    pub(super) fn new(base: PointStats, closing: bool) -> Self {
        Self { closing, base, chunks: VecDeque::new() }
    }

    /// Adds a chunk. While no rate is known here, chunks below the rate `least` do not count as training.
    pub(super) fn add(&mut self, chunk: Chunk, least: f64) -> ChunkVerdict {
        self.chunks.push_back(chunk);
        let verdict = judge(&self.intervals(), self.base.throughput.rate());
        if let Some(start) = verdict.changed_at {
            self.finalise(start, &verdict.excluded);
            return ChunkVerdict::Training;
        }
        let mut slow = verdict.paused;
        if verdict.rate.is_none() && self.chunks.len() < FEW {
            for (slow, chunk) in slow.iter_mut().zip(&self.chunks) {
                *slow |= chunk.rate() < least;
            }
        }
        let newest = self.chunks.back().map_or(0.0, |c| if self.is_long(c) { 0.0 } else { c.rate() });
        let is_slow = slow.last() == Some(&true);
        if self.chunks.len() > KEPT {
            self.finalise(1, &verdict.excluded);
        }
        match verdict.rate {
            _ if !is_slow => ChunkVerdict::Training,
            Some(rate) if newest >= 0.05 * rate => ChunkVerdict::Slow,
            _ => ChunkVerdict::Pause,
        }
    }

    /// Returns the statistics of the setting without pauses.
    pub(super) fn stats(&self, least: f64) -> PointStats {
        let verdict = judge(&self.intervals(), self.base.throughput.rate());
        let unknown = verdict.rate.is_none() && self.chunks.len() < FEW;
        let mut stats = self.base.clone();
        for (chunk, slow) in self.chunks.iter().zip(verdict.excluded) {
            if !(slow || unknown && chunk.rate() < least) {
                stats.add(chunk);
            }
        }
        stats
    }

    /// Finalises the first `count` chunks.
    fn finalise(&mut self, count: usize, slow: &[bool]) {
        for (chunk, slow) in self.chunks.drain(..count).zip(slow) {
            if !slow {
                self.base.add(&chunk);
            }
        }
    }

    /// Returns whether a chunk is much longer than most because the job did not report progress.
    fn is_long(&self, chunk: &Chunk) -> bool {
        let mut spans: Vec<f64> = self.chunks.iter().map(|c| c.span.get()).collect();
        spans.sort_by(f64::total_cmp);
        chunk.waited || spans.get(spans.len() / 2).is_some_and(|usual| chunk.span.get() > 2.0 * usual)
    }

    fn intervals(&self) -> Vec<IntervalWork> {
        let interval = |c: &Chunk| IntervalWork { span: c.span.get(), done: c.done.get(), waited: c.waited };
        self.chunks.iter().map(interval).collect()
    }
}
