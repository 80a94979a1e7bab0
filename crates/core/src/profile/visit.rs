//! Chunks measured at one setting without a break: those that hold pauses of the job's own are left out.

use std::collections::VecDeque;

use super::pace::{FEW, Pace, judge};
use super::point::{Chunk, PointStats};

/// Chunks that are judged again with each new one.
const KEPT: usize = 32;

/// What a chunk shows about the job.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Shows {
    /// It trained at the usual rate.
    Training,
    /// It paused: hardly anything was done.
    Pause,
    /// It was slow, at this part of the usual rate: a part of the time it paused, or it has changed.
    Slow,
}

/// One visit to a setting.
#[derive(Clone, Debug)]
pub(super) struct Visit {
    /// Whether it measures the ceiling for the closing of a sweep.
    pub(super) closing: bool,
    /// What was known before, and from chunks that are not judged again.
    base: PointStats,
    chunks: VecDeque<Chunk>,
}

impl Visit {
    pub(super) fn new(base: PointStats, closing: bool) -> Self {
        Self { closing, base, chunks: VecDeque::new() }
    }

    /// Adds a chunk; below the rate `least` nothing is taken for training while no rate is known here.
    pub(super) fn add(&mut self, chunk: Chunk, least: f64) -> Shows {
        self.chunks.push_back(chunk);
        let verdict = judge(&self.paces(), self.base.throughput.rate());
        if let Some(start) = verdict.changed_at {
            self.settle(start, &verdict.left_out);
            return Shows::Training;
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
            self.settle(1, &verdict.left_out);
        }
        match verdict.rate {
            _ if !is_slow => Shows::Training,
            Some(rate) if newest >= 0.05 * rate => Shows::Slow,
            _ => Shows::Pause,
        }
    }

    /// What is known of the setting, pauses left out.
    pub(super) fn stats(&self, least: f64) -> PointStats {
        let verdict = judge(&self.paces(), self.base.throughput.rate());
        let unknown = verdict.rate.is_none() && self.chunks.len() < FEW;
        let mut stats = self.base.clone();
        for (chunk, slow) in self.chunks.iter().zip(verdict.left_out) {
            if !(slow || unknown && chunk.rate() < least) {
                stats.add(chunk);
            }
        }
        stats
    }

    /// Judges the first `count` chunks for the last time.
    fn settle(&mut self, count: usize, slow: &[bool]) {
        for (chunk, slow) in self.chunks.drain(..count).zip(slow) {
            if !slow {
                self.base.add(&chunk);
            }
        }
    }

    /// Whether a chunk is much longer than most: the job was silent, or reported no progress.
    fn is_long(&self, chunk: &Chunk) -> bool {
        let mut spans: Vec<f64> = self.chunks.iter().map(|c| c.span.get()).collect();
        spans.sort_by(f64::total_cmp);
        chunk.waited || spans.get(spans.len() / 2).is_some_and(|usual| chunk.span.get() > 2.0 * usual)
    }

    fn paces(&self) -> Vec<Pace> {
        let pace = |c: &Chunk| Pace { span: c.span.get(), done: c.done.get(), waited: c.waited };
        self.chunks.iter().map(pace).collect()
    }
}
