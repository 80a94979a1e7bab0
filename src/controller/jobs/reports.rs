//! Progress reports that look like a mistake, such as steps or milliseconds instead of samples or seconds.

use crate::store::ReportSummary;
use wattune_core::domain::{JobSpec, Work};
use wattune_core::time::Monotonic;
use wattune_core::units::{Lasting, Samples, Seconds, Short};

/// Minimum number of reports before a mistake is stated, for most kinds of mistakes.
const FEW: u32 = 5;
/// Minimum time from the first to the last report before a mistake is stated, for most kinds of mistakes.
const SHORT: Seconds = Seconds::new(2.0);
/// Minimum time from the first to the last report for statements about throughput and the client's clock.
const LONGER: Seconds = Seconds::new(5.0);
/// Time after the first report by which a job has finished loading and compiling.
const LATEST_BEGIN: Seconds = Seconds::new(60.0);
/// Maximum factor by which the client's clock may run faster or slower than the daemon's.
const CLOCKS_DIFFER: f64 = 20.0;
/// Maximum ratio of reported to total samples that is no mistake: a last batch filled up to its full size explains it.
const BEYOND: f64 = 1.1;
/// Longest plausible duration of a training.
const LONGEST: Seconds = Seconds::new(5.0 * 365.25 * 86_400.0);
/// Ratio of a job's lease (longest silence before the job counts as dead) to the time between its reports, from which a
/// long lease was probably given in milliseconds.
const LEASE_SPACINGS: f64 = 5000.0;
const LONG_LEASE: Seconds = Seconds::new(10_000.0);
/// Unix times from 2001 to 2096, in seconds.
const UNIX_S: std::ops::Range<f64> = 1e9..4e9;

/// Advance of the client's clock from one report to the next that is accepted however little time has passed on the
/// daemon's clock, once two reports show how fast the client's clock runs.
const PLAUSIBLE: Seconds = Seconds::new(60.0);
/// Advance that is accepted before two reports show how fast the client's clock runs: it is so large that a clock in
/// milliseconds causes a warning and not an error.
const PLAUSIBLE_AT_FIRST: Seconds = Seconds::new(1e6);

/// First or last report of a job.
#[derive(Clone, Copy, Debug, PartialEq)]
struct ReceivedReport {
    samples: Samples,
    /// Time of the report on the client's clock; `None` if the report contains none.
    at: Option<Seconds>,
}

/// Summary of a job's reports to this daemon.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct ReceivedReports {
    summary: ReportSummary,
    /// Time on the daemon's clock at which the first report arrived.
    began: Option<Monotonic>,
}

impl ReceivedReports {
    /// Returns the reports of an ended job, from their stored summary; `None` stands for no reports.
    pub(crate) fn of(summary: Option<ReportSummary>) -> Self {
        Self { summary: summary.unwrap_or_default(), began: None }
    }

    /// Returns the summary, to be stored.
    pub(crate) fn summary(&self) -> ReportSummary {
        self.summary
    }

    /// Adds a report to the summary: `at` is its time on the client's clock, `received` its time on the daemon's.
    pub(crate) fn note(&mut self, samples: Samples, at: Option<Seconds>, received: Monotonic) {
        let (samples, at) = (samples.get(), at.map(Seconds::get));
        let summary = &mut self.summary;
        let began = *self.began.get_or_insert_with(|| {
            (summary.samples.0, summary.at_s.0) = (samples, at);
            received
        });
        (summary.samples.1, summary.at_s.1) = (samples, at);
        summary.took_s = received.since(began).get();
        summary.count = summary.count.saturating_add(1);
    }

    /// Starts a new summary because the client's clock has restarted: its time fell from `before` to `at`.
    pub(crate) fn restart_clock(&mut self, before: Seconds, at: Seconds) {
        let new_clock_s = self.summary.new_clock_s.or(Some((before.get(), at.get())));
        *self = Self::of(Some(ReportSummary { new_clock_s, ..ReportSummary::default() }));
    }

    /// Returns the longest plausible advance of the client's clock while `passed` elapses on the daemon's clock.
    pub(crate) fn longest_advance(&self, passed: Seconds) -> Seconds {
        let ReportSummary { count, took_s, at_s, .. } = self.summary;
        let pace = at_s.0.zip(at_s.1).map_or(1.0, |(first, last)| (last - first) / took_s.max(1e-3));
        let at_least = if count > 1 { PLAUSIBLE } else { PLAUSIBLE_AT_FIRST };
        passed * CLOCKS_DIFFER * pace.max(1.0) + at_least
    }

    /// Returns likely mistakes in the reports, in one sentence each, with what was probably meant.
    pub(crate) fn likely_mistakes(&self, spec: &JobSpec) -> Vec<String> {
        let ReportSummary { count, took_s, samples, at_s, new_clock_s } = self.summary;
        let report =
            |samples, at: Option<f64>| ReceivedReport { samples: Samples::new(samples), at: at.map(Seconds::new) };
        let (first, last) = (report(samples.0, at_s.0), report(samples.1, at_s.1));
        let took = Seconds::new(took_s);
        let total = match spec.work {
            Work::TotalSamples(total) => Some(total),
            Work::Unknown => None,
        };
        let beyond = total.filter(|total| last.samples > *total * BEYOND).map(|total| {
            format!(
                "{} samples are reported of {} in all: do samples and work.total_samples count the same?",
                Short(last.samples.get()),
                Short(total.get())
            )
        });
        let restart = new_clock_s.map(|(before, after)| {
            format!(
                "at_s fell from {} to {}, which was taken for a new clock; it counts seconds of one monotonic clock{}",
                Short(before),
                Short(after),
                unit_hint(Seconds::new(before), Seconds::new(after))
            )
        });
        let of_few = beyond.into_iter().chain(restart);
        if count < FEW || took < SHORT {
            return of_few.collect();
        }
        let constant = last.samples <= first.samples;
        let none = (constant && first.samples <= Samples::ZERO && took >= LATEST_BEGIN).then(|| {
            format!(
                "all {} reports of {:.0} s say 0 samples: samples is the cumulative count of this run; does the job count its samples?",
                count,
                took.get()
            )
        });
        let constant = (constant && first.samples > Samples::ZERO).then(|| {
            format!(
                "all {} reports say {} samples: samples is the cumulative count of this run; is the count of each step \
                 reported?",
                count,
                Short(last.samples.get())
            )
        });
        let of_time = (took >= LONGER).then(|| [clock(first, last, took), endless(first, last, took, total)]);
        let lease = self.lease(spec, took);
        let of_time = of_time.into_iter().flatten().flatten();
        of_few.chain(none).chain(constant).chain(of_time).chain(lease).collect()
    }

    fn lease(&self, spec: &JobSpec, took: Seconds) -> Option<String> {
        let spacing = took / f64::from(self.summary.count.saturating_sub(1).max(1));
        let is_long = spec.lease >= LONG_LEASE && spec.lease > spacing * LEASE_SPACINGS;
        is_long.then(|| {
            format!(
                "the lease is {:.1} h, and there is a report every {:.1} s: lease_s is in seconds; is it given in milliseconds?",
                spec.lease.get() / 3600.0,
                spacing.get()
            )
        })
    }
}

/// Describes the likely mistake that the client's clock does not count seconds; `None` if it seems to count them.
fn clock(first: ReceivedReport, last: ReceivedReport, took: Seconds) -> Option<String> {
    let passed = last.at? - first.at?;
    let pace = passed / took;
    let unit = match pace {
        pace if pace > CLOCKS_DIFFER => "milliseconds",
        pace if pace < 1.0 / CLOCKS_DIFFER => "minutes or steps",
        _ => return None,
    };
    Some(format!(
        "at_s has advanced by {:.3} in {:.0} s: it counts seconds; are these {unit}?",
        passed.get(),
        took.get()
    ))
}

/// Describes the likely mistake that the work would take years at the reported throughput; `None` if it would not.
fn endless(first: ReceivedReport, last: ReceivedReport, took: Seconds, total: Option<Samples>) -> Option<String> {
    let (done, left) = (last.samples - first.samples, total? - last.samples);
    if done <= Samples::ZERO {
        return None;
    }
    let needed = took * (left / done);
    (needed > LONGEST).then(|| {
        format!(
            "at this throughput the work takes {}: do samples and work.total_samples count the same? Are steps or epochs \
             reported?",
            Lasting(needed)
        )
    })
}

/// Returns a question that names the unit in which a client's time was probably given, where `expected` seconds were
/// expected; empty if no unit explains the difference.
pub(super) fn unit_hint(at: Seconds, expected: Seconds) -> &'static str {
    match (at.get(), at / expected) {
        (at, _) if UNIX_S.contains(&at) => "; is this Unix time?",
        (at, _) if UNIX_S.contains(&(at / 1e3)) => "; is this Unix time in milliseconds?",
        (at, _) if UNIX_S.contains(&(at / 1e6)) => "; is this Unix time in microseconds?",
        (at, _) if UNIX_S.contains(&(at / 1e9)) => "; is this Unix time in nanoseconds?",
        (_, ratio) if (2e2..5e3).contains(&ratio) => "; are these milliseconds?",
        (_, ratio) if (2e5..5e6).contains(&ratio) => "; are these microseconds?",
        (_, ratio) if (2e8..5e9).contains(&ratio) => "; are these nanoseconds?",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use wattune_core::domain::{GpuId, JobName, Objective};

    fn spec(total: Option<f64>, lease: f64) -> JobSpec {
        JobSpec {
            name: JobName::new("a").expect("a name"),
            gpus: vec![GpuId::new("GPU-0").expect("an id")],
            batch_size: Some(256),
            work: total.map_or(Work::Unknown, |total| Work::TotalSamples(Samples::new(total))),
            objective: Objective::DEFAULT,
            lease: Seconds::new(lease),
            control: true,
            priority: 0,
            tags: BTreeMap::new(),
            processes: None,
            offers: Default::default(),
        }
    }

    /// Returns the likely mistakes after one report per second. `samples` and `at` map the second to the reported count
    /// and to the time on the client's clock.
    fn likely_mistakes(spec: &JobSpec, seconds: u32, samples: fn(f64) -> f64, at: Option<fn(f64) -> f64>) -> String {
        let mut received = ReceivedReports::default();
        let start = Monotonic::default();
        for i in 0..=seconds {
            let t = f64::from(i);
            received.note(Samples::new(samples(t)), at.map(|at| Seconds::new(at(t))), start.after(Seconds::new(t)));
        }
        received.likely_mistakes(spec).join("; ")
    }

    #[test]
    fn reports_that_count_something_else_are_doubted() {
        let usual = spec(Some(1e6), 60.0);
        type Of = fn(f64) -> f64;
        let table: [(&JobSpec, Of, Option<Of>, &str); 10] = [
            (&usual, |_| 256.0, None, "is the count of each step reported?"),
            (&usual, |t| 256.0 * (t + 1.0), Some(|t| 1000.0 * t), "are these milliseconds?"),
            (&usual, |t| 256.0 * (t + 1.0), Some(|t| t / 60.0), "are these minutes or steps?"),
            (&spec(Some(90.0), 60.0), |t| 256.0 * (t + 1.0), None, "do samples and work.total_samples count the same?"),
            (&spec(Some(1e9), 60.0), |t| t, None, "Are steps or epochs reported?"),
            (&spec(None, 60_000.0), |t| 256.0 * t, None, "is it given in milliseconds?"),
            (&usual, |t| 256.0 * (t + 1.0), Some(|t| t + 7.0), ""),
            (&usual, |_| 0.0, Some(|t| t), ""),
            (&spec(None, 3600.0), |t| 256.0 * t, None, ""),
            (&spec(Some(5000.0), 60.0), |t| 256.0 * t, None, ""),
        ];
        for (i, (spec, samples, at, part)) in table.into_iter().enumerate() {
            let likely_mistakes = likely_mistakes(spec, 20, samples, at);
            assert!(
                likely_mistakes.contains(part) && likely_mistakes.is_empty() == part.is_empty(),
                "{i}: {likely_mistakes:?}"
            );
        }
        assert_eq!(likely_mistakes(&usual, 1, |_| 256.0, None), "", "too few to say");
        let long: [(f64, Of, &str); 4] = [
            (5e-324, |t| 256.0 * t, "5120 samples are reported of 5e-324 in all"),
            (1e15, |t| 5e-324 * t.ceil(), "takes more than 100 years"),
            (1e15, |t| 1e-3 * t, "takes more than 100 years"),
            (1e10, |t| 20.0 * t, "takes 16 years"),
        ];
        for (total, samples, reported) in long {
            let likely_mistakes = likely_mistakes(&spec(Some(total), 60.0), 20, samples, None);
            assert!(
                likely_mistakes.contains(reported) && likely_mistakes.len() < 200 && !likely_mistakes.contains("inf"),
                "{total}: {likely_mistakes}"
            );
        }
        // A job that loads and compiles reports zero samples for a while.
        assert!(likely_mistakes(&usual, 90, |_| 0.0, None).contains("does the job count its samples?"));
    }
}
