//! What jobs save: the references frozen when a job is planned first, and what came of it.

mod told;

use std::collections::BTreeSet;

use chrono::TimeDelta;

use super::job::Job;
use super::{ControlError, Controller};
use crate::store::{StoreError, StoredJob};
use wattune_core::domain::{CarbonSeries, GpuId, JobId, PowerLimit, SetPoint, Slot};
use wattune_core::ledger::entry::Entry;
use wattune_core::ledger::frozen::{Counterfactual, Outcome, RULE, Reference, Said};
use wattune_core::ledger::{Emissions, Interval};
use wattune_core::plan::Plan;
use wattune_core::profile::Evidence;
use wattune_core::profile::ladder::Setting;
use wattune_core::units::{GramsCo2e, Joules, Seconds};

/// So long after its end a job waits for intensities; whoever has not told them by then seldom will.
const AWAITED: TimeDelta = TimeDelta::days(14);
/// No more ended jobs are looked at for that after a start.
const RECALLED: u32 = 1000;

/// Which of a job's references.
#[derive(Clone, Copy)]
enum Which {
    Found,
    Max,
}

impl Which {
    fn of(self, frozen: &Counterfactual) -> &Reference {
        match self {
            Self::Found => &frozen.found,
            Self::Max => &frozen.max,
        }
    }
}

/// What an account is told from.
pub(super) struct Sources<'a> {
    pub(super) stored: &'a StoredJob,
    /// The job as it runs or ran, with its profile.
    pub(super) job: &'a Job,
    pub(super) rows: &'a [Interval],
    pub(super) series: &'a CarbonSeries,
    pub(super) emissions: &'a Emissions,
}

impl Controller {
    /// Writes down against what the jobs will be compared that have a plan and were not frozen yet, or were profiled anew.
    pub(super) async fn freeze_references(&mut self) {
        let is_due = |job: &&Job| {
            let restarts = job.profiler.as_ref().map(|p| p.restarts());
            job.spec.control && job.plan.is_some() && job.is_profiled() && job.frozen.is_none_or(|n| Some(n) < restarts)
        };
        let due: Vec<JobId> = self.jobs.values().filter(is_due).map(|j| j.id.clone()).collect();
        for id in due {
            let earlier = match self.counterfactuals(&id).await {
                Ok(earlier) => earlier,
                Err(error) => return self.accounting.note_store_fault(&error),
            };
            let Some(job) = self.jobs.get(&id) else { continue };
            // After a restart of the daemon it stands in the ledger already.
            let is_known = job.frozen.is_none() && !earlier.is_empty();
            let why = if earlier.is_empty() { "its first plan" } else { "it was profiled anew" };
            let entry = match &job.plan {
                Some(plan) if !is_known => Some(self.counterfactual(job, plan, earlier.len(), why)),
                _ => None,
            };
            if let Some(job) = self.jobs.get_mut(&id) {
                job.frozen = job.profiler.as_ref().map(|p| p.restarts());
            }
            if let Some(entry) = entry {
                self.write_note(Entry::Counterfactual(Box::new(entry))).await;
            }
        }
    }

    fn counterfactual(&self, job: &Job, plan: &Plan, earlier: usize, why: &str) -> Counterfactual {
        let reference = |which| {
            let (limits, measured) = match self.reference_limits(job, which) {
                Ok(limits) => {
                    let evidence = self.evidence_at(job, &limits);
                    (limits, evidence)
                }
                Err(why) => (Vec::new(), Err(why)),
            };
            let expected = measured.as_ref().ok().map(|at| expected(plan, at));
            let (expected_energy_j, expected_carbon_g) = expected.unzip();
            let expected_carbon_g = expected_carbon_g.flatten();
            Reference { limits, measured: measured.into(), expected_energy_j, expected_carbon_g }
        };
        let said = |f: &wattune_core::domain::Forecast| Said {
            source: f.source.clone(),
            zone: f.zone.clone(),
            issued_at: f.issued_at,
        };
        Counterfactual {
            at: self.now().utc,
            job: job.id.clone(),
            version: u32::try_from(earlier + 1).unwrap_or(u32::MAX),
            why: why.into(),
            rule: RULE.into(),
            samples: plan.samples_done,
            found: reference(Which::Found),
            max: reference(Which::Max),
            planned_energy_j: plan.expected.energy,
            planned_carbon_g: plan.expected.carbon,
            planned_end: plan.expected.ends_at,
            forecast: self.signal.forecast().map(said),
        }
    }

    /// The limit of each group that a reference is at.
    fn reference_limits(&self, job: &Job, which: Which) -> Result<Vec<PowerLimit>, String> {
        let of = |id: &GpuId| {
            let gpu = self.gpus.get(id)?;
            match which {
                Which::Found => self.gpus.found(id),
                Which::Max => gpu.range().map(|range| range.max),
            }
        };
        let one = |members: &[GpuId]| {
            let limits: Option<BTreeSet<PowerLimit>> = members.iter().map(of).collect();
            match limits.ok_or("a board does not tell its limits")?.into_iter().collect::<Vec<_>>().as_slice() {
                [only] => Ok(*only),
                _ if matches!(which, Which::Found) => Err("its boards were found at different limits"),
                _ => Err("its boards have different maximum limits"),
            }
        };
        let limits: Result<Vec<_>, &str> = job.groups.iter().map(|g| one(&g.members)).collect();
        match limits {
            Ok(limits) if limits.is_empty() => Err("its boards have no power limit to set".into()),
            limits => limits.map_err(Into::into),
        }
    }

    /// What the profile measured with the groups at these limits.
    fn evidence_at(&self, job: &Job, limits: &[PowerLimit]) -> Result<Evidence, String> {
        let words: Vec<String> = limits.iter().map(ToString::to_string).collect();
        let words = words.join(" + ");
        if let Some(group) =
            job.groups.iter().zip(limits).find(|(g, l)| **l > g.range.ceiling && !l.same_as(g.range.ceiling))
        {
            return Err(format!(
                "nothing is measured at {words}: wattune goes no higher than {}, the limit that was found or that a cap \
                 leaves",
                group.0.range.ceiling
            ));
        }
        let profiler = job.profiler.as_ref().ok_or("its boards have no power limit to set")?;
        // Boards may show a limit rounded.
        let is_there = |setting: &Setting| {
            let alike = |(set, limit): (&SetPoint, &PowerLimit)| set.same_as((*limit).into());
            setting.len() == limits.len() && setting.iter().zip(limits).all(alike)
        };
        let profile = profiler.profile();
        let setting = profile.points.iter().map(|p| &p.setting).find(|s| is_there(s));
        let evidence = setting.and_then(|s| profiler.evidence(s));
        evidence.ok_or_else(|| format!("the profile has no measurement at {words}"))
    }

    /// Writes down what came of a job that ended. What cannot be written now is, at a later tick.
    pub(super) async fn note_outcome(&mut self, job: &Job, stored: &StoredJob, why: &str) {
        let outcome = match self.reckon(job, stored, why).await {
            Ok(Some(outcome)) => outcome,
            Ok(None) => return,
            Err(ControlError::Store(error)) => return self.accounting.note_store_fault(&error),
            Err(_) => return,
        };
        if outcome.savings.is_provisional() {
            self.saved.awaited.insert(stored.id.clone());
        }
        self.write_note(Entry::Outcome(Box::new(outcome))).await;
    }

    /// Jobs that ended in the last days before this daemon began and may still wait for intensities.
    ///
    /// # Errors
    /// If they cannot be read.
    pub(super) async fn recall_awaited(&mut self) -> Result<(), StoreError> {
        let since = self.now().utc - AWAITED;
        for stored in self.store.ended_jobs(RECALLED).await? {
            if stored.ended.as_ref().is_some_and(|(at, _)| *at >= since)
                && self.outcome(&stored.id).await?.is_some_and(|outcome| outcome.savings.is_provisional())
            {
                self.saved.awaited.insert(stored.id);
            }
        }
        Ok(())
    }

    /// Jobs that ended before all intensities of their time had come are reckoned again once these have.
    pub(super) async fn reckon_what_came(&mut self) -> Result<(), StoreError> {
        let since = self.now().utc - AWAITED;
        for id in self.saved.awaited.clone() {
            let stored = self.store.job(&id).await?;
            let recent = stored.filter(|j| j.ended.as_ref().is_some_and(|(at, _)| *at >= since));
            let Some(stored) = recent else {
                self.saved.awaited.remove(&id);
                continue;
            };
            let (spec, progress) = (stored.spec.clone(), stored.progress);
            let Ok(job) = self.make_job(id.clone(), spec, progress, stored.registered_at).await else { continue };
            let outcome = match self.reckon(&job, &stored, "the intensities of its time have come").await {
                Ok(Some(outcome)) if outcome.savings.is_provisional() => continue,
                Ok(outcome) => outcome,
                Err(ControlError::Store(error)) => return Err(error),
                Err(_) => continue,
            };
            self.saved.awaited.remove(&id);
            if let Some(outcome) = outcome {
                self.write_note(Entry::Outcome(Box::new(outcome))).await;
            }
        }
        Ok(())
    }

    /// Jobs of whose energy something was read only after they had ended are reckoned again.
    pub(super) async fn reckon_late(&mut self, late: BTreeSet<JobId>) {
        for id in late {
            let stored = match self.store.job(&id).await {
                Ok(stored) => stored.filter(|job| job.ended.is_some()),
                Err(error) => return self.accounting.note_store_fault(&error),
            };
            self.accounting.forget_late(&id);
            let Some(stored) = stored else { continue };
            let (spec, progress) = (stored.spec.clone(), stored.progress);
            let Ok(job) = self.make_job(id, spec, progress, stored.registered_at).await else { continue };
            self.note_outcome(&job, &stored, "energy of its time was read after its end").await;
        }
    }

    async fn reckon(&self, job: &Job, stored: &StoredJob, why: &str) -> Result<Option<Outcome>, ControlError> {
        let earlier = self.outcome(&stored.id).await?;
        // A job that was never planned has nothing to be compared with.
        if self.counterfactuals(&stored.id).await?.is_empty() {
            return Ok(None);
        }
        let rows = self.accounting.rows_of(&stored.id, &self.store).await?;
        let (emissions, series) = self.intensities().settle(&rows).await?;
        let sources = Sources { stored, job, rows: &rows, series: &series, emissions: &emissions };
        let known = self.done(&sources).await?;
        let savings = self.savings(&sources, known).await?;
        if earlier.as_ref().is_some_and(|before| before.savings == savings) {
            return Ok(None);
        }
        Ok(Some(Outcome {
            at: self.now().utc,
            job: stored.id.clone(),
            version: earlier.map_or(0, |before| before.version) + 1,
            why: why.into(),
            active_s: stored.progress.account.active,
            stalled_s: stored.progress.account.stalled,
            stalled_energy_j: stored.progress.account.stalled_energy,
            samples: stored.progress.account.samples,
            savings,
        }))
    }

    /// Jobs whose minutes are about to be rolled up are reckoned a last time, with the intensities known now.
    pub(super) async fn reckon_before_roll_up(&mut self, ids: Vec<JobId>) -> Result<(), StoreError> {
        for id in ids {
            let Some(stored) = self.store.job(&id).await?.filter(|j| j.ended.is_some()) else { continue };
            if self.outcome(&id).await?.is_none() || self.store.is_rolled_up(&id).await? {
                continue;
            }
            let (spec, progress) = (stored.spec.clone(), stored.progress);
            let Ok(job) = self.make_job(id, spec, progress, stored.registered_at).await else { continue };
            self.note_outcome(&job, &stored, "its minutes are rolled up").await;
        }
        Ok(())
    }

    /// A job's references as they were frozen, oldest first.
    async fn counterfactuals(&self, id: &JobId) -> Result<Vec<Counterfactual>, StoreError> {
        let written = self.store.entries_of("counterfactual", id).await?;
        let is_one = |entry: Entry| match entry {
            Entry::Counterfactual(it) if it.job == *id => Some(*it),
            _ => None,
        };
        Ok(written.into_iter().chain(self.accounting.notes().cloned()).filter_map(is_one).collect())
    }

    /// What came of a job, as written last.
    async fn outcome(&self, id: &JobId) -> Result<Option<Outcome>, StoreError> {
        let written = self.store.entries_of("outcome", id).await?;
        let is_one = |entry: Entry| match entry {
            Entry::Outcome(it) if it.job == *id => Some(*it),
            _ => None,
        };
        Ok(written.into_iter().chain(self.accounting.notes().cloned()).filter_map(is_one).next_back())
    }

    /// Writes an entry now if that is possible, else at a later tick.
    async fn write_note(&mut self, entry: Entry) {
        self.accounting.note(entry);
        if self.accounting.store_fault().is_none() {
            let (accounting, mut node) = self.accounts();
            if let Err(error) = accounting.write_notes(&mut node).await {
                accounting.note_store_fault(&error);
            }
        }
    }
}

/// What the work of a plan would use at a reference, and emit by the plan's intensities; grams are absent where it would
/// take longer than the plan.
fn expected(plan: &Plan, at: &Evidence) -> (Joules, Option<GramsCo2e>) {
    let time = plan.expected.samples / at.throughput;
    (at.power * time, expected_carbon(plan, at, time))
}

fn expected_carbon(plan: &Plan, at: &Evidence, time: Seconds) -> Option<GramsCo2e> {
    let span = Slot::new(plan.made_at, plan.made_at.checked_add_signed(time.to_delta())?)?;
    let (mut covered, mut carbon) = (Seconds::ZERO, GramsCo2e::ZERO);
    for segment in &plan.segments {
        let Some(part) = segment.slot.intersection(&span) else { continue };
        covered += part.duration();
        carbon += at.power * part.duration() * segment.intensity;
    }
    ((time - covered).abs() < Seconds::new(1.0)).then_some(carbon)
}
