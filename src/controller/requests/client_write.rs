//! Requests of clients of other protocols to change a setting of a GPU. Each is a manual override that its client owns.
//!
//! The driver may be slow, so a write is done in steps, between which the control loop continues: the caller
//! repeats [`Controller::step_client_write`] until it returns the outcome.

use std::path::Path;

use crate::controller::Controller;
use crate::controller::gpus::{Gpu, Override, OverrideEnd};
use crate::controller::planning::ReplanReason;
use crate::controller::requests::Caller;
use crate::controller::requests::audit::action_of;
use crate::cpu;
use crate::gpu::{GpuError, Write};
use crate::store::{AuditAction, AuditOutcome, AuditRecord, AuditState};
use wattune_core::domain::{GpuId, PowerLimit, Process};

/// Number of times that a write is tried again because an external writer changed the limit at the same time.
const TRIES: u32 = 3;

/// Identity and rights of a client that writes, and the end of the override that its write makes.
#[derive(Clone, Debug)]
pub struct Claim {
    /// Client that writes.
    pub by: Caller,
    /// End of the override.
    pub end: OverrideEnd,
    /// True if the client may also change GPUs that a job or a manual override controls.
    pub over_jobs: bool,
}

/// Setting that a client changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    /// Power limit. A limit above the GPU's maximum usable limit sets that limit instead.
    PowerLimit(PowerLimit),
    /// Persistence mode, clocks or the memory's clocks.
    Other(Write),
}

/// Reason why a client's write was refused or failed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum WriteRefused {
    /// Another owner controls the GPU, or this daemon controls none.
    #[error("{0}")]
    Owned(String),
    /// The GPU accepts no such limit.
    #[error("the limit is outside the GPU's range")]
    OutOfRange,
    /// The GPU's limit cannot be set, whatever it is.
    #[error("{0}")]
    Impossible(String),
    /// The driver refused.
    #[error(transparent)]
    Device(#[from] GpuError),
    /// The journal cannot be written, so nothing was changed.
    #[error("nothing is changed: {0}; the original setting could not be restored")]
    Journal(String),
}

/// Write of one setting of a GPU, until its outcome is known.
#[derive(Clone, Debug)]
pub struct ClientWrite {
    gpu: GpuId,
    setting: Setting,
    claim: Claim,
    stage: Stage,
    tries: u32,
    /// True if the setting was written to the GPU; the write then has a record of its own in the audit log.
    is_written: bool,
}

#[derive(Clone, Debug)]
enum Stage {
    New,
    /// The write was sent; holds the override from before.
    Sent(Option<Override>),
}

impl Setting {
    /// Returns the action that sets it, and the state that is requested.
    fn describe(self) -> (AuditAction, Option<AuditState>) {
        match self {
            Self::PowerLimit(limit) => (AuditAction::SetPowerLimit, Some(AuditState::power_limit(limit))),
            Self::Other(write) => action_of(write),
        }
    }
}

impl WriteRefused {
    /// Returns the outcome of the write for the audit log.
    const fn outcome(&self) -> AuditOutcome {
        match self {
            Self::Owned(_) | Self::OutOfRange | Self::Impossible(_) => AuditOutcome::Refused,
            Self::Device(_) | Self::Journal(_) => AuditOutcome::Failed,
        }
    }
}

impl ClientWrite {
    /// Returns a write that has not begun.
    pub fn new(gpu: GpuId, setting: Setting, claim: Claim) -> Self {
        Self { gpu, setting, claim, stage: Stage::New, tries: 0, is_written: false }
    }
}

impl Controller {
    /// Checks that a client may change a GPU now.
    ///
    /// # Errors
    /// In observe mode; or if a job or a manual override of the daemon's own API controls the GPU, unless the claim
    /// goes before these.
    pub fn check_claim(&self, id: &GpuId, claim: &Claim) -> Result<(), WriteRefused> {
        if self.settings.observe {
            let why = "this daemon observes only (observe = true, or --observe); it changes nothing";
            return Err(WriteRefused::Owned(why.into()));
        }
        let Some(gpu) = self.gpus.get(id).filter(|_| !claim.over_jobs) else { return Ok(()) };
        let index = gpu.handle.identity().index;
        if let Some(owner) = &gpu.owner {
            let name = self.jobs.get(owner).map(|job| format!(" ({})", job.spec.name)).unwrap_or_default();
            return Err(WriteRefused::Owned(format!(
                "GPU {index} is controlled by wattune's job {owner}{name}; Zeus clients may change it once the job has ended, \
                 or at any time if zeus.over_jobs = true"
            )));
        }
        match &gpu.manual {
            Some(manual) if !manual.by.is_zeus() => Err(WriteRefused::Owned(format!(
                "GPU {index} has a manual override of {}; Zeus clients may change it once the override has ended (DELETE \
                 /v1/gpus/{index}/power-limit), or at any time if zeus.over_jobs = true",
                manual.limit
            ))),
            _ => Ok(()),
        }
    }

    /// Does the next step of a client's write. Returns the outcome once it is known.
    pub async fn step_client_write(&mut self, write: &mut ClientWrite) -> Option<Result<(), WriteRefused>> {
        let Some(gpu) = self.gpus.get_mut(&write.gpu) else {
            return Some(Err(GpuError::Lost { call: "nvmlDeviceGetHandleByIndex_v2" }.into()));
        };
        gpu.observe();
        if gpu.is_writing() {
            return None;
        }
        let before = gpu.observed.reading.requested;
        let outcome = match (write.stage.clone(), write.setting) {
            (Stage::New, _) => self.begin_write(write).await,
            (Stage::Sent(before), Setting::PowerLimit(_)) => self.finish_limit(write, before),
            (Stage::Sent(before), Setting::Other(setting)) => self.finish_setting(write, setting, before),
        };
        let outcome = outcome.transpose()?;
        if !write.is_written {
            self.audit_client_write(&write.gpu, write.setting, &write.claim, before, &outcome);
        }
        Some(outcome)
    }

    /// Records a client's write that was refused, or that changed nothing.
    pub fn audit_client_write(
        &mut self,
        gpu: &GpuId,
        setting: Setting,
        claim: &Claim,
        before: Option<PowerLimit>,
        outcome: &Result<(), WriteRefused>,
    ) {
        let (action, after) = setting.describe();
        let record = AuditRecord {
            gpu: Some(gpu.to_string()),
            before: before.filter(|_| action == AuditAction::SetPowerLimit).map(AuditState::power_limit),
            after,
            ..self.new_record(&claim.by, action)
        };
        self.audit(match outcome {
            Ok(()) => record,
            Err(refused) => record.with_outcome(refused.outcome(), refused.to_string()),
        });
    }

    /// Ends the overrides of a client whose process has ended.
    pub async fn end_client(&mut self, process: Process) {
        let is_theirs = |gpu: &Gpu| {
            gpu.manual.as_ref().is_some_and(|manual| {
                manual.by.zeus_process() == Some(process) && manual.end == OverrideEnd::WithProcess
            })
        };
        let mut ended = false;
        for gpu in self.gpus.iter_mut().filter(|gpu| is_theirs(gpu)) {
            tracing::info!(gpu.uuid = %gpu.id(), "GPU {}: process {} has ended, and its override with it", gpu.id(), process.pid);
            gpu.end_override("its client's process has ended");
            ended = true;
        }
        if ended {
            self.replan(ReplanReason::OverrideEnded).await;
            self.act();
        }
    }

    async fn begin_write(&mut self, write: &mut ClientWrite) -> Result<Option<()>, WriteRefused> {
        self.check_claim(&write.gpu, &write.claim)?;
        refuse_ended_client(&write.claim)?;
        let (now, ceiling) = (self.now(), self.gpus.ceiling(&write.gpu));
        let Some(gpu) = self.gpus.get_mut(&write.gpu) else { return Ok(None) };
        if let Some((error, _)) = &gpu.observed.fault {
            return Err(error.clone().into());
        }
        let can = gpu.handle.capabilities();
        let current = gpu.observed.reading.requested.ok_or_else(|| unreported(&can.limit))?;
        let before = gpu.manual.clone();
        let held = before.as_ref().filter(|manual| manual.by.is_zeus());
        let limit = match write.setting {
            Setting::PowerLimit(limit) => limit.min(allowed(gpu, limit)?).min(ceiling.unwrap_or(limit)),
            Setting::Other(_) => held.map_or(current, |manual| manual.limit),
        };
        let manual = Override {
            limit,
            end: write.claim.end,
            by: write.claim.by.clone(),
            yields_to_jobs: !write.claim.over_jobs,
            locks_clocks: held.is_some_and(|manual| manual.locks_clocks),
            locks_memory: held.is_some_and(|manual| manual.locks_memory),
        };
        let external = gpu.external;
        let is_new =
            before.as_ref().is_none_or(|before| before.by != manual.by || before.limit != limit) || external.is_some();
        gpu.replace_override(manual);
        if is_new {
            tracing::info!(gpu.uuid = %write.gpu, power.limit_w = limit.watts().get(), caller = %write.claim.by,
                "GPU {}: override of {limit}", write.gpu);
            self.replan(ReplanReason::SetByHand).await;
        }
        write.stage = Stage::Sent(before.clone());
        if let Some(gpu) = self.gpus.get_mut(&write.gpu) {
            gpu.write_for(write.claim.by.clone());
        }
        let unsent = match write.setting {
            Setting::PowerLimit(_) if current.same_as(limit) && !is_new => return Ok(Some(())),
            Setting::PowerLimit(_) => {
                self.act();
                self.gpus.get_mut(&write.gpu).and_then(|gpu| gpu.unjournalled.take())
            }
            Setting::Other(setting) => self.gpus.send_setting(&write.gpu, setting, current, now).err(),
        };
        let Some(gpu) = self.gpus.get_mut(&write.gpu) else { return Ok(None) };
        write.is_written = gpu.has_written_for();
        if let Some(why) = unsent {
            (gpu.manual, gpu.external) = (before, external);
            return Err(WriteRefused::Journal(why));
        }
        gpu.observe();
        if gpu.is_writing() {
            return Ok(None);
        }
        match write.setting {
            Setting::PowerLimit(_) => self.finish_limit(write, before),
            Setting::Other(setting) => self.finish_setting(write, setting, before),
        }
    }

    fn finish_limit(&mut self, write: &mut ClientWrite, before: Option<Override>) -> Result<Option<()>, WriteRefused> {
        let Some(gpu) = self.gpus.get_mut(&write.gpu) else { return Ok(None) };
        let ours = gpu.manual.as_ref().filter(|manual| manual.by == write.claim.by);
        let Some(manual) = ours else {
            // An external writer was faster, or the override has ended since.
            return Ok(if gpu.external.is_some() { try_again(write) } else { Some(()) });
        };
        if let Some(error) = gpu.limit_error(manual.limit) {
            gpu.manual = before;
            return Err(error.into());
        }
        match gpu.sent(Write::PowerLimit(manual.limit)) {
            Some(Err(GpuError::LimitChanged { .. })) => Ok(try_again(write)),
            _ => Ok(Some(())),
        }
    }

    fn finish_setting(
        &mut self,
        write: &mut ClientWrite,
        setting: Write,
        before: Option<Override>,
    ) -> Result<Option<()>, WriteRefused> {
        let Some(gpu) = self.gpus.get_mut(&write.gpu) else { return Ok(None) };
        let Some(result) = gpu.sent(setting) else { return Ok(try_again(write)) };
        gpu.settle_client_lock(setting, result.is_ok());
        if let Err(error) = result {
            gpu.manual = before;
            return Err(error.into());
        }
        Ok(Some(()))
    }

    async fn replan(&mut self, why: ReplanReason) {
        if self.jobs.iter().next().is_some() {
            self.jobs.replan_all(why);
            self.plan().await;
        }
    }
}

/// Begins a write again, unless that was done too often.
fn try_again(write: &mut ClientWrite) -> Option<()> {
    write.tries += 1;
    write.is_written = false;
    write.stage = Stage::New;
    (write.tries > TRIES).then_some(())
}

/// Refuses the write of a process that has ended: its override would end at once.
fn refuse_ended_client(claim: &Claim) -> Result<(), WriteRefused> {
    match (claim.end, claim.by.zeus_process()) {
        (OverrideEnd::WithProcess, Some(process)) if !cpu::is_running(Path::new("/proc"), process) => {
            Err(WriteRefused::Owned(format!("the client, process {}, has ended", process.pid)))
        }
        _ => Ok(()),
    }
}

fn unreported(limit: &Result<(), GpuError>) -> GpuError {
    limit.clone().err().unwrap_or(GpuError::NotSupported { call: "nvmlDeviceGetPowerManagementLimit" })
}

/// Returns the highest limit of the GPU's range if the GPU's limit can be set to `limit`.
fn allowed(gpu: &Gpu, limit: PowerLimit) -> Result<PowerLimit, WriteRefused> {
    let can = gpu.handle.capabilities();
    if can.mig || can.virtualised {
        return Err(WriteRefused::Impossible(can.why_no_control().unwrap_or_default()));
    }
    match &can.limits {
        Err(error) => Err(error.clone().into()),
        Ok(range) if (range.min..=range.max).contains(&limit) => Ok(range.max),
        Ok(_) => Err(WriteRefused::OutOfRange),
    }
}
