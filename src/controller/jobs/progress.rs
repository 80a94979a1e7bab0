//! Progress of a job: readings of its GPUs, its reports, and the account of its time.

use super::job::{Job, Phase, SweepCeiling};
use super::reports::unit_hint;
use crate::controller::error::ControlError;
use crate::controller::gpus::{Gpu, Gpus};
use crate::controller::planning::ReplanReason;
use crate::store::LastReport;
use wattune_core::domain::{EventReasons, GpuId, InvalidJob, MOST_SAMPLES, ProgressSource, SetPoint, Work};
use wattune_core::plan::JobActivity;
use wattune_core::profile::steps::Setting;
use wattune_core::profile::{AccountHistory, GpuSnapshot, Profiler, Report, SettingEstimate};
use wattune_core::time::{Monotonic, Now};
use wattune_core::units::{Joules, Lasting, Samples, SamplesPerSecond, Seconds, Short};

/// Maximum time on the client's clock: no monotonic clock runs for centuries, so a larger value is not in seconds.
const LATEST_AT: Seconds = Seconds::new(1e10);

/// Minimum decrease of the client's time that counts as a new clock; a smaller one means reports out of order.
const NEW_CLOCK: Seconds = Seconds::new(60.0);

/// Progress report of a job.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProgressReport {
    /// Cumulative count of samples of this run.
    pub samples: Samples,
    /// Time of the report on the client's monotonic clock, if given.
    pub at: Option<Seconds>,
    /// Total work, if the report states it: jobs often learn their total only once they have begun.
    pub total: Option<Samples>,
    /// Source of the report.
    pub source: ProgressSource,
}

impl ProgressReport {
    /// Returns a report of a client of the HTTP API that states only its count, and the time on its clock if given.
    pub fn new(samples: Samples, at: Option<Seconds>) -> Self {
        Self { samples, at, total: None, source: ProgressSource::default() }
    }

    /// Checks the report on its own. `last_at` is the time of the last report on the client's clock, if known.
    fn check(&self, last_at: Option<Seconds>) -> Result<(), InvalidJob> {
        let invalid = |field, why| Err(InvalidJob { field, why });
        if self.samples < Samples::ZERO {
            return invalid("samples", format!("is {}; it is a count and cannot be negative", self.samples.get()));
        }
        if self.samples.get() > MOST_SAMPLES {
            let why = format!("is {:e}; no run counts beyond {MOST_SAMPLES:e} samples", self.samples.get());
            return invalid("samples", why);
        }
        if let Some(total) = self.total.filter(|t| *t <= Samples::ZERO || t.get() > MOST_SAMPLES) {
            let why = format!("is {:e}; it must be more than 0 and at most {MOST_SAMPLES:e}", total.get());
            return invalid("total_samples", why);
        }
        if self.at.is_some_and(|at| at < Seconds::ZERO) {
            return invalid("at_s", "is negative; give monotonic seconds since the job's start".into());
        }
        if let Some(at) = self.at.filter(|at| *at > LATEST_AT) {
            let hint = unit_hint(at, last_at.unwrap_or(at));
            let why = format!("is {:e}; it counts seconds, at most {:e}{hint}", at.get(), LATEST_AT.get());
            return invalid("at_s", why);
        }
        Ok(())
    }
}

impl Job {
    /// Passes the readings of the job's GPUs to its profiler and its detector of pauses.
    pub(in crate::controller) fn observe(&mut self, gpus: &Gpus, now: Now) {
        if self.is_absent() {
            return self.observe_absence(now);
        }
        let (setting, reasons) = self.in_force(gpus);
        let energy: Vec<Joules> = self.groups.iter().map(|g| group_energy(&g.members, gpus, now)).collect();
        let at = now.monotonic;
        self.setting.clone_from(&setting);
        self.count_idle_time(at);
        self.allow_learning(now);
        let idle = self.activity() != JobActivity::Training;
        // The energy of a GPU that does not answer is unknown.
        let known = setting.is_some().then(|| energy.iter().copied().sum());
        self.stalls.observe(at, setting.as_ref(), known, idle);
        if let Some(profiler) = &mut self.profiler {
            // Readings during a pause do not measure a set point.
            let (unusable, capped) = (reasons.invalidate_profile() || idle, reasons.any_of(EventReasons::SW_POWER_CAP));
            let steered = self.phase == Phase::Profiling && !matches!(self.sweep_ceiling, SweepCeiling::Waiting { .. });
            profiler.observe(GpuSnapshot { at, setting, steered, unusable, capped, energy });
        }
    }

    /// Counts the time of a job that is not on its GPUs; what these GPUs do meanwhile is not the job's.
    fn observe_absence(&mut self, now: Now) {
        self.setting = None;
        self.count_idle_time(now.monotonic);
        self.stalls.observe(now.monotonic, None, None, true);
        if let Some(profiler) = &mut self.profiler {
            let nothing = GpuSnapshot {
                at: now.monotonic,
                setting: None,
                steered: false,
                unusable: true,
                capped: false,
                energy: vec![Joules::ZERO; self.groups.len()],
            };
            profiler.observe(nothing);
        }
    }

    /// Returns first the set point in force on each group of the job's GPUs, and second the reasons for lowered clocks
    /// that the GPUs report. The first is `None` if a GPU reports no limit, or if the GPUs of a group differ.
    fn in_force(&self, gpus: &Gpus) -> (Option<Setting>, EventReasons) {
        let mut reasons = EventReasons::default();
        let mut setting = Setting::with_capacity(self.groups.len());
        for group in &self.groups {
            let mut agreed = None;
            for id in &group.members {
                let Some(gpu) = gpus.get(id).filter(|g| g.observed.fault.is_none()) else { return (None, reasons) };
                let Some(limit) = gpu.observed.reading.enforced.or(gpu.observed.reading.requested) else {
                    return (None, reasons);
                };
                let set = SetPoint { limit, clock: gpu.clock_in_force() };
                reasons = reasons | gpu.observed.reading.reasons.unwrap_or_default();
                match agreed {
                    None => agreed = Some(set),
                    Some(other) if set.same_as(other) => {}
                    Some(_) => return (None, reasons),
                }
            }
            let Some(set) = agreed else { return (None, reasons) };
            // Some GPUs round the limit that they report; the profile contains the limit as it was requested.
            setting.push(self.nearest_known(setting.len(), set));
        }
        (Some(setting), reasons)
    }

    /// Records a progress report and renews the job's lease (longest silence before the job counts as dead).
    ///
    /// # Errors
    /// If the report is invalid or contradicts the previous one; then nothing but the lease changes.
    pub(crate) fn report(&mut self, mut report: ProgressReport, now: Now) -> Result<(), ControlError> {
        self.renew_lease(now);
        let last = self.progress.last;
        report.check(last.and_then(|last| last.at_s).map(Seconds::new))?;
        if let Some(last) = last {
            // A job that was suspended goes on from its checkpoint, and does some of its work again.
            let is_redone = self.progress.presence.restarted_at.is_some() && report.samples.get() <= last.samples;
            if is_redone {
                report.samples = Samples::new(last.samples);
            }
            if report.samples.get() < last.samples {
                let why = format!(
                    "is {}, less than the {} reported before; it is the cumulative count of this run, not that of a step or an \
                     epoch (end the job and register anew after going back to an old checkpoint)",
                    report.samples.get(),
                    last.samples
                );
                return Err(InvalidJob { field: "samples", why }.into());
            }
            let span = self.elapsed_since(&last, report.at, now)?;
            let done = report.samples - Samples::new(last.samples);
            self.account_for(span, done);
            if done > Samples::ZERO {
                self.note_restarted(now);
            }
        } else {
            self.progress.first_samples = report.samples.get();
            self.progress.started_at = Some(now.utc);
            self.stalls.begin();
        }
        if let Some(total) = report.total {
            self.set_total(total);
        }
        self.progress.source = Some(report.source);
        self.progress.last =
            Some(LastReport { samples: report.samples.get(), at_s: report.at.map(Seconds::get), received: now.utc });
        self.last_report_at = Some(now.monotonic);
        self.received_reports.note(report.samples, report.at, now.monotonic);
        let trains = self.activity() == JobActivity::Training;
        self.allow_learning(now);
        if trains {
            self.update_profiler(&report, now);
        }
        self.note_profiler();
        Ok(())
    }

    /// Returns the time from the last report to one at the time `at` on the client's clock, by that clock if both
    /// reports have a time. A client's clock that has begun anew is recorded.
    ///
    /// # Errors
    /// If the client's clock goes backwards, or advances much faster than the daemon's.
    fn elapsed_since(&mut self, last: &LastReport, at: Option<Seconds>, now: Now) -> Result<Seconds, InvalidJob> {
        let passed = self.since_last_report(now).unwrap_or_default();
        let Some((at, before)) = at.zip(last.at_s.map(Seconds::new)) else { return Ok(passed) };
        if at < before - NEW_CLOCK {
            self.received_reports.restart_clock(before, at);
            return Ok(passed);
        }
        let why = if at < before {
            let (at, before) = (Short(at.get()), Short(before.get()));
            format!("is {at}, before the {before} reported last; it must come from a monotonic clock")
        } else if at - before > self.received_reports.longest_advance(passed) {
            format!(
                "is {}, {} after the {} reported last, but only {} have passed; it counts seconds of one monotonic \
                 clock{}",
                Short(at.get()),
                Lasting(at - before),
                Short(before.get()),
                Lasting(passed),
                unit_hint(at, before + passed)
            )
        } else {
            return Ok(at - before);
        };
        Err(InvalidJob { field: "at_s", why })
    }

    /// Passes a report to the profiler. If the profiler detects that the job has changed, the account of the work until
    /// then is fixed.
    fn update_profiler(&mut self, report: &ProgressReport, now: Now) {
        let reference = self.reference();
        let Some(profiler) = &mut self.profiler else { return };
        let before = profiler.stage();
        profiler.report(Report { received: now.monotonic, at: report.at, samples: report.samples });
        if profiler.stage() != before {
            self.replan = Some(ReplanReason::ProfileChanged);
        }
        if profiler.restarts() != self.history.restarts() {
            if let Some(earlier) = profiler.changed_at().and_then(|at| self.history.work_until(at)) {
                self.stalls.set_earlier(earlier);
                self.progress.account.set_earlier(earlier);
            }
            // The reference of these accounts no longer applies.
            self.history = AccountHistory::after(profiler.restarts());
        } else if let Some(reference) = reference.filter(|_| !profiler.is_drifting()) {
            let account = self.progress.account.as_earlier(reference);
            self.history.push(now.monotonic, account, profiler.detection_time());
        }
    }

    /// Sets the job's total work, as a report states it. A plan for another total is made again.
    fn set_total(&mut self, total: Samples) {
        self.progress.total_samples = Some(total.get());
        let work = Work::TotalSamples(total);
        if self.spec.work != work {
            self.spec.work = work;
            self.replan = Some(ReplanReason::WorkChanged);
        }
    }

    /// Renews the job's lease (longest silence before the job counts as dead).
    pub(crate) fn renew_lease(&mut self, now: Now) {
        self.lease_until = now.monotonic.after(self.spec.lease);
    }

    /// Counts the time since the last call as idle, if the plan has the job do no work.
    pub(crate) fn count_idle_time(&mut self, at: Monotonic) {
        let is_idle = self.activity() != JobActivity::Training;
        self.idling.count(at, is_idle);
    }

    /// Accounts for the time `span` between two reports and the work `done` in this time. Where the plan has the job do
    /// no work, the time is not taken for one of the job's own pauses: the time and the work done in it count towards
    /// the slowdown.
    pub(crate) fn account_for(&mut self, span: Seconds, done: Samples) {
        self.idling.since_report = Seconds::ZERO;
        let known = known_settings(self.profiler.as_ref());
        self.progress.account = self.stalls.report(span, done, &known);
        self.note_profiler();
        if let (Some(profiler), Some(pauses)) = (&mut self.profiler, self.stalls.latest_pauses()) {
            profiler.exclude_pauses(pauses);
        }
    }

    /// Fixes the time that the work so far takes at its ceilings (maximum usable limits), which change. `reference` is the
    /// throughput at the ceilings until now, if measured.
    pub(super) fn note_other_ceilings(&mut self, reference: Option<SamplesPerSecond>) {
        let known = known_settings(self.profiler.as_ref());
        self.progress.account = self.stalls.note_other_ceilings(reference, &known);
        self.note_profiler();
    }

    /// Has stored what a daemon that starts does not know from the profile: the reference throughput at lowered
    /// ceilings, the usual time between reports, and the work before a change for which the job waits at its maximum
    /// usable limits.
    pub(super) fn note_profiler(&mut self) {
        let reference = self.reference().filter(|_| self.progress.has_lowered_ceilings);
        self.progress.lowered_reference = reference.map(SamplesPerSecond::get);
        let Some(profiler) = &self.profiler else { return };
        let account = &mut self.progress.account;
        account.spacing = profiler.spacing().or(account.spacing);
        account.drifting = profiler.waits_since().and_then(|since| self.history.work_until(since));
    }
}

/// Returns a function that returns what is known of the throughput and power at a setting.
fn known_settings(profiler: Option<&Profiler>) -> impl Fn(&Setting) -> Option<SettingEstimate> + use<> {
    let known = profiler.map(Profiler::setting_estimates).unwrap_or_default();
    move |setting: &Setting| known.iter().find(|(of, _)| of == setting).map(|(_, known)| *known)
}

/// Returns the energy of a group's GPUs up to `now`. The GPUs were read some milliseconds before `now`; the energy
/// since the reading is estimated from their power, because without it short measurements would be wrong.
fn group_energy(members: &[GpuId], gpus: &Gpus, now: Now) -> Joules {
    let energy = |gpu: &Gpu| {
        let since = gpu.observed.at.map(|at| now.monotonic.since(at.monotonic)).unwrap_or_default();
        let drawn = gpu.observed.reading.power.unwrap_or_default() * since;
        gpu.observed.metered.drawn.to_joules() + drawn
    };
    members.iter().filter_map(|id| gpus.get(id)).map(energy).sum()
}
