//! Uninterrupted measurement at one setting, without chunks (times between two reports) that contain the job's own
//! pauses.

use std::collections::VecDeque;

use super::pause_detection::{FEW, IntervalWork, judge};
use super::point::{Chunk, PointStats};

/// Number of latest chunks (times between two reports) that are judged anew (training or pause) whenever a chunk is
/// added.
const KEPT: usize = 32;

/// Class of a chunk (time between two reports) by its rate of progress.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum ChunkVerdict {
    /// The job trained at its usual rate.
    Training,
    /// The job trained at a changed rate, as it did in the slow chunks (times between two reports) before.
    Changed,
    /// The job paused: almost no progress.
    Pause,
    /// The job was slower than usual: it partly paused, or it has changed.
    Slow,
}

/// An uninterrupted measurement at one setting.
#[derive(Clone, Debug)]
pub(super) struct Measurement {
    /// True if the measurement repeats the ceiling (maximum usable limits) at the end of a sweep.
    pub(super) closing: bool,
    /// Statistics of earlier measurements at this setting, and of older chunks (times between two reports), which are
    /// no longer judged anew.
    base: PointStats,
    chunks: VecDeque<Chunk>,
}

impl Measurement {
    pub(super) fn new(base: PointStats, closing: bool) -> Self {
        Self { closing, base, chunks: VecDeque::new() }
    }

    /// Adds and classifies a chunk (time between two reports). While there are too few chunks to estimate the setting's
    /// rate, chunks with a rate below `least` (samples/s) do not count as training.
    pub(super) fn add(&mut self, chunk: Chunk, least: f64) -> ChunkVerdict {
        self.chunks.push_back(chunk);
        let verdict = judge(&self.intervals(), self.base.throughput.rate());
        if let Some(start) = verdict.changed_at {
            self.finalise(start, &verdict.excluded);
            return ChunkVerdict::Changed;
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

    /// Returns the statistics of the setting without chunks (times between two reports) that contain pauses. `least` is
    /// as in [`Self::add`].
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

    /// Removes the oldest `count` chunks (times between two reports) and adds them to the statistics in `base`, from
    /// where no later chunk can change them. Chunks marked as `slow` are dropped.
    fn finalise(&mut self, count: usize, slow: &[bool]) {
        for (chunk, slow) in self.chunks.drain(..count).zip(slow) {
            if !slow {
                self.base.add(&chunk);
            }
        }
    }

    /// Returns true if a chunk (time between two reports) contains further reports without progress or is more than
    /// twice as long as the median chunk.
    fn is_long(&self, chunk: &Chunk) -> bool {
        let mut spans: Vec<f64> = self.chunks.iter().map(|c| c.span.get()).collect();
        spans.sort_by(f64::total_cmp);
        chunk.waited || spans.get(spans.len() / 2).is_some_and(|usual| chunk.span.get() > 2.0 * usual)
    }

    fn intervals(&self) -> Vec<IntervalWork> {
        let interval = |c: &Chunk| IntervalWork { span: c.span.get(), samples: c.samples_done.get(), waited: c.waited };
        self.chunks.iter().map(interval).collect()
    }
}
