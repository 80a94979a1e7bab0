//! Follows a job's progress through the messages of several sources that count the same work.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use serde::Deserialize;

use wattune_core::domain::ProgressSource;

/// Number of messages of another process after which that process is followed, if the followed process has sent none
/// meanwhile.
const MESSAGES_OF_A_SUCCESSOR: u32 = 3;

/// Message about a job's progress. Counts are cumulative, and may start above 0 in a resumed run.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(super) struct Message {
    pub(super) source: ProgressSource,
    /// Time of the count in seconds, on this machine's monotonic clock.
    #[serde(default)]
    pub(super) at_s: Option<f64>,
    /// Number of optimizer steps.
    #[serde(default)]
    pub(super) steps: Option<f64>,
    /// Total number of steps, if known.
    #[serde(default)]
    pub(super) total_steps: Option<f64>,
    /// Number of samples, if the source counts samples.
    #[serde(default)]
    pub(super) samples: Option<f64>,
    /// Total number of samples, if known.
    #[serde(default)]
    pub(super) total_samples: Option<f64>,
    /// Process that counts the progress.
    #[serde(default)]
    pub(super) pid: u32,
    /// Job that this process has registered itself. The process then also reports to the daemon itself.
    #[serde(default)]
    pub(super) job_id: Option<String>,
}

/// Progress to report to the daemon.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Count {
    pub(super) samples: f64,
    /// Time of the count in seconds, on this machine's monotonic clock.
    pub(super) at_s: f64,
    /// Total number of samples, if known.
    pub(super) total: Option<f64>,
    pub(super) source: ProgressSource,
}

/// Progress of a job, taken from the most explicit of its sources. The count never decreases.
#[derive(Debug, Default)]
pub(super) struct Follower {
    /// Number of samples of a step; if unknown, a step counts as one sample.
    batch_size: Option<u64>,
    followed: Option<Followed>,
    /// Highest count so far, in the job's count.
    count: Option<Count>,
    /// True if `count` has not been taken.
    is_new: bool,
    /// True if the command has been started again since the last message.
    is_restarted: bool,
}

/// Part of the job's count from which on the first count of a command that was started again counts as that of the whole
/// job. A smaller one counts what the new process does.
const GOES_ON_FROM: f64 = 0.5;

#[derive(Debug)]
struct Followed {
    source: ProgressSource,
    pid: u32,
    /// Difference between the job's count and the source's; `None` until the source has counted.
    offset: Option<f64>,
    /// Last count of the source.
    last: f64,
    /// Number of messages of other processes since the last message of the followed one.
    others: BTreeMap<u32, u32>,
}

impl Follower {
    pub(super) fn new(batch_size: Option<u64>) -> Self {
        Self { batch_size, ..Self::default() }
    }

    /// Returns the source that is followed; `None` before the first message.
    pub(super) fn source(&self) -> Option<ProgressSource> {
        self.followed.as_ref().map(|f| f.source)
    }

    /// Applies a message. Ignores it if a more explicit source is known, or if it comes from another process than the
    /// followed one and the followed one still reports.
    pub(super) fn apply(&mut self, message: &Message) {
        if !self.accepts(message) {
            return;
        }
        let per_step = self.batch_size.map_or(1.0, |size| size as f64);
        let in_samples = |samples: Option<f64>, steps: Option<f64>| {
            samples.or(steps.map(|steps| steps * per_step)).filter(|n| n.is_finite() && *n >= 0.0)
        };
        let total = in_samples(message.total_samples, message.total_steps);
        let (Some(followed), Some(counted)) = (&mut self.followed, in_samples(message.samples, message.steps)) else {
            return;
        };
        let reached = self.count.map(|count| count.samples);
        let is_restarted = std::mem::take(&mut self.is_restarted);
        let offset = match (followed.offset, reached) {
            // A command that was started again goes on from its checkpoint, or counts from 0.
            (None, Some(reached)) if is_restarted && counted >= GOES_ON_FROM * reached => 0.0,
            (None, Some(reached)) if is_restarted => reached,
            // The first source counts from where the run begins: a resumed run goes on from its old count.
            (None, None) => 0.0,
            // A second source counts the same work.
            (None, Some(reached)) => reached - counted,
            // The source has begun another loop and counts anew.
            (Some(offset), _) if counted < followed.last => offset + followed.last,
            (Some(offset), _) => offset,
        };
        (followed.offset, followed.last) = (Some(offset), counted);
        let Some(at_s) = message.at_s.filter(|at| at.is_finite() && *at >= 0.0) else { return };
        let samples = (counted + offset).max(reached.unwrap_or(0.0));
        let total = total.map(|total| total + offset).filter(|total| *total >= samples && *total > 0.0);
        self.count = Some(Count { samples, at_s, total, source: followed.source });
        self.is_new = true;
    }

    /// Returns whether the message comes from the source and process to follow, after a change to another one where
    /// that is due.
    fn accepts(&mut self, message: &Message) -> bool {
        let Some(followed) = &mut self.followed else {
            self.followed = Some(Followed::of(message));
            return true;
        };
        match message.source.cmp(&followed.source) {
            Ordering::Less => return false,
            Ordering::Greater => {
                self.followed = Some(Followed::of(message));
                return true;
            }
            Ordering::Equal => {}
        }
        if message.pid == followed.pid {
            followed.others.clear();
            return true;
        }
        let heard = followed.others.entry(message.pid).or_default();
        *heard += 1;
        let succeeds = *heard >= MESSAGES_OF_A_SUCCESSOR;
        if succeeds {
            self.followed = Some(Followed::of(message));
        }
        succeeds
    }

    /// Prepares for the messages of a restarted command, whose processes and sources are new. The count continues.
    pub(super) fn restart(&mut self) {
        (self.followed, self.is_restarted) = (None, self.count.is_some());
    }

    /// Returns true if all samples are done. `total` is their number, used if no source has named it.
    pub(super) fn is_complete(&self, total: Option<f64>) -> bool {
        self.count.is_some_and(|count| count.total.or(total).is_some_and(|total| count.samples >= total))
    }

    /// Returns the newest count; `None` if this count was returned before.
    pub(super) fn take(&mut self) -> Option<Count> {
        self.count.filter(|_| std::mem::take(&mut self.is_new))
    }

    /// Makes [`Self::take`] return the newest count again, because it did not reach the daemon.
    pub(super) fn put_back(&mut self) {
        self.is_new = self.count.is_some();
    }
}

impl Followed {
    fn of(message: &Message) -> Self {
        Self { source: message.source, pid: message.pid, offset: None, last: 0.0, others: BTreeMap::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(source: ProgressSource, pid: u32, at_s: f64, steps: impl Into<Option<f64>>) -> Message {
        let steps = steps.into();
        Message {
            source,
            at_s: Some(at_s),
            steps,
            total_steps: None,
            samples: None,
            total_samples: None,
            pid,
            job_id: None,
        }
    }

    fn hook(at_s: f64, steps: f64) -> Message {
        message(ProgressSource::OptimizerHook, 1, at_s, steps)
    }

    /// Returns the counts after each of the messages.
    fn counts(batch_size: Option<u64>, messages: &[Message]) -> Vec<Option<f64>> {
        let mut follower = Follower::new(batch_size);
        let each = messages.iter().map(|message| {
            follower.apply(message);
            follower.take().map(|count| count.samples)
        });
        each.collect()
    }

    #[test]
    fn steps_become_samples() {
        assert_eq!(counts(Some(64), &[hook(1.0, 1.0), hook(2.0, 10.0)]), [Some(64.0), Some(640.0)]);
        assert_eq!(counts(None, &[hook(1.0, 40_000.0), hook(2.0, 40_010.0)]), [Some(40_000.0), Some(40_010.0)]);
        let known = Message { samples: Some(777.0), ..hook(1.0, 1.0) };
        assert_eq!(counts(Some(64), &[known]), [Some(777.0)]);
    }

    #[test]
    fn the_most_explicit_source_is_followed_and_the_count_goes_on() {
        let posted = |at, steps: Option<f64>| message(ProgressSource::TrainerStatus, 0, at, steps);
        let table = [
            // The Trainer posts its total before the first step, and its count 5 s later.
            (
                vec![posted(0.0, None), hook(1.0, 1.0), posted(5.0, Some(40_009.0)), hook(6.0, 12.0)],
                vec![None, None, Some(40_009.0), None],
            ),
            // A source that begins later counts the work that was done before.
            (
                vec![hook(1.0, 10.0), hook(2.0, 20.0), posted(3.0, Some(21.0)), posted(8.0, Some(71.0))],
                vec![Some(10.0), Some(20.0), Some(20.0), Some(70.0)],
            ),
            // A second loop counts from 0 again.
            (
                vec![hook(1.0, 10.0), hook(2.0, 20.0), hook(3.0, 5.0), hook(4.0, 15.0)],
                vec![Some(10.0), Some(20.0), Some(25.0), Some(35.0)],
            ),
        ];
        for (messages, expected) in table {
            assert_eq!(counts(None, &messages), expected, "{messages:?}");
        }
    }

    #[test]
    fn one_process_is_followed_until_another_takes_over() {
        let of = |pid, at, steps| message(ProgressSource::OptimizerHook, pid, at, Some(steps));
        let messages = [
            of(1, 1.0, 10.0),
            of(2, 1.5, 3.0),
            of(1, 2.0, 20.0),
            of(2, 3.0, 4.0),
            of(2, 4.0, 5.0),
            of(2, 5.0, 6.0),
            of(2, 6.0, 8.0),
        ];
        assert_eq!(
            counts(None, &messages),
            [Some(10.0), None, Some(20.0), None, None, Some(20.0), Some(22.0)],
            "the second process has sent three messages since the first one's last"
        );
    }

    #[test]
    fn totals_follow_the_count() {
        let mut follower = Follower::new(Some(2));
        follower.apply(&Message { total_steps: Some(100.0), ..hook(1.0, 10.0) });
        assert_eq!(follower.take().and_then(|count| count.total), Some(200.0));
        assert_eq!(follower.take(), None, "it was taken");
        follower.put_back();
        assert_eq!(follower.take().map(|count| count.samples), Some(20.0));
        // The total of another source includes what was done before it began, on the job's count.
        let lightning = message(ProgressSource::Lightning, 1, 2.0, Some(0.0));
        follower.apply(&Message { total_steps: Some(50.0), ..lightning });
        assert_eq!(follower.take().and_then(|count| count.total), Some(120.0));
        // A total below the count is wrong.
        follower.apply(&Message { total_steps: Some(1.0), ..message(ProgressSource::Lightning, 1, 3.0, Some(9.0)) });
        assert_eq!(follower.take().map(|count| (count.samples, count.total)), Some((38.0, None)));
    }

    #[test]
    fn a_command_that_is_started_again_goes_on() {
        // The counts of the first process, those of the second one, and what the job has then done.
        let table: [(&[f64], &[f64], &[f64]); 4] = [
            // It counts all steps of the job, and resumes where it stopped, or at an earlier checkpoint.
            (&[1.0, 500.0], &[501.0, 510.0], &[501.0, 510.0]),
            (&[1.0, 500.0], &[401.0, 499.0, 502.0], &[500.0, 500.0, 502.0]),
            // It counts its own steps.
            (&[1.0, 500.0], &[1.0, 10.0], &[501.0, 510.0]),
            (&[], &[1.0, 10.0], &[1.0, 10.0]),
        ];
        for (first, second, expected) in table {
            let mut follower = Follower::new(None);
            first.iter().for_each(|steps| follower.apply(&hook(1.0, *steps)));
            follower.restart();
            let of = |steps: &f64| message(ProgressSource::OptimizerHook, 2, 9.0, *steps);
            let counts = second.iter().map(|steps| {
                follower.apply(&of(steps));
                follower.take().expect("a count").samples
            });
            assert_eq!(counts.collect::<Vec<_>>(), expected, "{first:?} {second:?}");
        }
        let mut follower = Follower::new(None);
        follower.apply(&Message { total_steps: Some(20.0), ..hook(1.0, 19.0) });
        assert!(!follower.is_complete(Some(5.0)), "the source's total counts");
        follower.apply(&hook(2.0, 20.0));
        assert!(follower.is_complete(Some(20.0)) && !follower.is_complete(None));
    }

    #[test]
    fn odd_numbers_are_ignored() {
        for odd in [f64::NAN, f64::INFINITY, -1.0] {
            assert_eq!(counts(None, &[hook(1.0, odd)]), [None]);
            assert_eq!(counts(None, &[hook(odd, 1.0)]), [None]);
        }
    }
}
