//! References of a job: the power limits with which the job is compared. They are recorded (frozen) in the ledger at
//! the job's first plan, and again after each new profile.

use std::collections::BTreeSet;

use crate::controller::jobs::{Job, Jobs};
use crate::controller::snapshot::Snapshot;
use crate::store::StoreError;
use wattune_core::domain::{Forecast, GpuId, JobId, PowerLimit, SetPoint, Slot};
use wattune_core::ledger::entry::Entry;
use wattune_core::ledger::forecast_id::ForecastId;
use wattune_core::ledger::savings_entries::{Counterfactual, RULE, Reference};
use wattune_core::plan::Plan;
use wattune_core::profile::Evidence;
use wattune_core::profile::steps::{Setting, joined};
use wattune_core::units::{GramsCo2e, Joules, Samples, Seconds};

/// Kind of a job's reference: the original limits of the job's GPUs, or their maximum usable limits.
#[derive(Clone, Copy)]
pub(super) enum ReferenceKind {
    Original,
    Max,
}

impl ReferenceKind {
    pub(super) fn of(self, frozen: &Counterfactual) -> &Reference {
        match self {
            Self::Original => &frozen.original,
            Self::Max => &frozen.max,
        }
    }
}

/// Returns the planned jobs whose references are not recorded (frozen) yet, or that have changed and been profiled anew
/// since their references were recorded.
pub(crate) fn due_references(jobs: &Jobs) -> Vec<JobId> {
    let is_due = |job: &&Job| {
        job.controls()
            && job.plan.is_some()
            && job.is_profiled()
            && job.references_fit_from.is_none_or(|from| from < changed_at(job))
    };
    jobs.iter().filter(is_due).map(|job| job.id.clone()).collect()
}

/// Returns the number of samples that the job had completed when it last changed; `None` if it never changed.
pub(crate) fn changed_at(job: &Job) -> Option<Samples> {
    job.progress.account.earlier.map(|earlier| earlier.samples)
}

impl Snapshot<'_> {
    /// Returns the ledger's entry for a job's references; `None` if an entry by an earlier daemon is still valid, or if
    /// the job has no plan.
    pub(crate) async fn freeze(&self, job: &Job) -> Result<Option<Entry>, StoreError> {
        let Some(plan) = &job.plan else { return Ok(None) };
        let earlier = self.counterfactuals(&job.id).await?;
        if earlier.last().is_some_and(|newest| newest.fits_from() >= changed_at(job)) {
            return Ok(None);
        }
        let why = if earlier.is_empty() { "its first plan" } else { "it was profiled anew" };
        Ok(Some(Entry::Counterfactual(Box::new(self.counterfactual(job, plan, earlier.len(), why)))))
    }

    fn counterfactual(&self, job: &Job, plan: &Plan, earlier: usize, why: &str) -> Counterfactual {
        let reference = |which| {
            let (limits, measured) = match self.reference_limits(job, which) {
                Ok(limits) => {
                    let evidence = evidence_at(job, &limits);
                    (limits, evidence)
                }
                Err(why) => (Vec::new(), Err(why)),
            };
            let expected = measured.as_ref().ok().map(|at| expected(plan, at));
            let (expected_energy_j, expected_carbon_g) = expected.unzip();
            let expected_carbon_g = expected_carbon_g.flatten();
            Reference { limits, measured: measured.into(), expected_energy_j, expected_carbon_g }
        };
        // The reference of a job that changed applies from the change on.
        let changed_at = job.progress.account.earlier.filter(|_| earlier > 0).map(|earlier| earlier.samples);
        let id = |f: &Forecast| ForecastId { source: f.source.clone(), zone: f.zone.clone(), issued_at: f.issued_at };
        Counterfactual {
            at: self.now.utc,
            job: job.id.clone(),
            version: u32::try_from(earlier + 1).unwrap_or(u32::MAX),
            why: why.into(),
            rule: RULE.into(),
            samples: changed_at.unwrap_or(plan.samples_done),
            other_work: job.progress.account.earlier.filter(|_| earlier == 0),
            original: reference(ReferenceKind::Original),
            max: reference(ReferenceKind::Max),
            planned_energy_j: plan.expected.energy,
            planned_carbon_g: plan.expected.carbon,
            planned_end: plan.expected.ends_at,
            forecast: self.signal.forecast().map(id),
        }
    }

    /// Returns the power limit of each group of the job's GPUs at a reference, or the reason why a limit is missing.
    fn reference_limits(&self, job: &Job, which: ReferenceKind) -> Result<Vec<PowerLimit>, String> {
        let of = |id: &GpuId| {
            let gpu = self.gpus.get(id)?;
            match which {
                ReferenceKind::Original => self.gpus.original_limit(id),
                ReferenceKind::Max => gpu.range().map(|range| range.max),
            }
        };
        let one = |members: &[GpuId]| {
            let limits: Option<BTreeSet<PowerLimit>> = members.iter().map(of).collect();
            match limits.ok_or("a GPU does not report its limits")?.into_iter().collect::<Vec<_>>().as_slice() {
                [only] => Ok(*only),
                _ if matches!(which, ReferenceKind::Original) => Err("its GPUs have different original limits"),
                _ => Err("its GPUs have different maximum limits"),
            }
        };
        let limits: Result<Vec<_>, &str> = job.groups.iter().map(|g| one(&g.members)).collect();
        match limits {
            Ok(limits) if limits.is_empty() => Err("its GPUs have no power limit to set".into()),
            limits => limits.map_err(Into::into),
        }
    }
}

/// Returns the profile's measurement with the job's groups of GPUs at `limits`, or the reason why there is none.
pub(super) fn evidence_at(job: &Job, limits: &[PowerLimit]) -> Result<Evidence, String> {
    let words = joined(limits);
    if let Some(group) =
        job.groups.iter().zip(limits).find(|(g, l)| **l > g.range.ceiling && !l.same_as(g.range.ceiling))
    {
        return Err(format!(
            "nothing is measured at {words}: wattune sets no limit above {}, which the original limit or a cap determines",
            group.0.range.ceiling
        ));
    }
    let profiler = job.profiler.as_ref().ok_or("its GPUs have no power limit to set")?;
    // GPUs may report a rounded limit, so limits are compared with a tolerance.
    let is_there = |setting: &Setting| {
        let alike = |(set, limit): (&SetPoint, &PowerLimit)| set.same_as((*limit).into());
        setting.len() == limits.len() && setting.iter().zip(limits).all(alike)
    };
    let profile = profiler.profile();
    let setting = profile.points.iter().map(|p| &p.setting).find(|s| is_there(s));
    let evidence = setting.and_then(|s| profiler.evidence(s));
    evidence.ok_or_else(|| format!("the profile has no measurement at {words}"))
}

/// Returns first the energy that a plan's work would use at a reference, second the emissions of that energy by the
/// plan's carbon intensities. The emissions are `None` if the work would take longer at the reference than the plan
/// lasts.
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
