//! Writes of clients of other protocols that change a setting of a GPU. Each is a manual override that its client owns.
//!
//! The driver may be slow, so a write is done in steps, between which the control loop continues.

use std::path::Path;

use crate::controller::Controller;
use crate::controller::gpus::{Gpu, Override, OverrideEnd, WriteRequest};
use crate::controller::planning::ReplanReason;
use crate::controller::requests::audit_values::{deferred, not_permitted};
use crate::controller::requests::client_commands::{ClientWrite, OverrideRequest, Setting, Stage, WriteRefused};
use crate::cpu;
use crate::gpu::{GpuError, Write};
use crate::store::{AuditAction, AuditOutcome, AuditRecord, AuditState};
use wattune_core::domain::{GpuId, PowerLimit, Process};

/// Number of times that a write is tried again because an external writer changed the limit, or another setting was written
/// first.
const TRIES: u32 = 3;

/// State of a write after a step.
pub(super) enum WriteStep {
    /// The write has ended, and did not fail.
    Done,
    /// The GPU has to end a write first, or this write has to begin again.
    Pending,
}

impl Controller {
    /// Checks that a client may change a GPU now.
    ///
    /// # Errors
    /// In observe mode; or if a job or a manual override of the daemon's own API controls the GPU, unless the request
    /// takes precedence over both.
    pub(super) fn check_request(&self, id: &GpuId, request: &OverrideRequest) -> Result<(), WriteRefused> {
        if self.settings.observe {
            let why = "this daemon observes only (observe = true, or --observe); it changes nothing";
            return Err(WriteRefused::Owned(why.into()));
        }
        let Some(gpu) = self.gpus.get(id).filter(|_| !request.over_jobs) else { return Ok(()) };
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

    /// Does the next step of a client's write.
    ///
    /// # Errors
    /// If the write was refused or has failed; then it has ended.
    pub(super) async fn step_client_write(&mut self, write: &mut ClientWrite) -> Result<WriteStep, WriteRefused> {
        let Some(gpu) = self.gpus.get_mut(&write.gpu) else {
            return Err(GpuError::Lost { call: "nvmlDeviceGetHandleByIndex_v2" }.into());
        };
        gpu.observe();
        if gpu.is_writing() {
            return Ok(WriteStep::Pending);
        }
        let before = gpu.observed.reading.requested;
        let step = match write.stage {
            Stage::New => self.begin_write(write).await,
            Stage::Sent => self.finish_write(write),
        };
        if matches!(step, Ok(WriteStep::Pending)) {
            return step;
        }
        if step.is_err() && write.has_begun() {
            self.put_back_override(write);
        }
        if !write.is_written {
            self.audit_client_write(write, before, step.as_ref().err());
        }
        step
    }

    /// Records a client's write that was refused, or that changed nothing.
    pub(super) fn audit_client_write(
        &mut self,
        write: &ClientWrite,
        before: Option<PowerLimit>,
        refused: Option<&WriteRefused>,
    ) {
        let record = with_limit_before(write.record(self.now().utc), before);
        let in_force = write.setting.power_limit().and_then(|_| self.gpus.get(&write.gpu)?.observed.reading.requested);
        self.audit(match (refused, self.limit_instead(write)) {
            (Some(refused), _) => record.with_outcome(refused.outcome(), refused.to_string()),
            (None, Some((shown, why))) => AuditRecord {
                after: shown.map(AuditState::power_limit),
                ..record.with_outcome(AuditOutcome::NotEnforced, why)
            },
            // The limit in force may differ: one within half a watt of it is not written, and GPUs round.
            (None, None) => AuditRecord { after: in_force.map(AuditState::power_limit).or(record.after), ..record },
        });
    }

    /// Puts back the override and the external limit from before a write that failed, if the write's own override is in
    /// force.
    fn put_back_override(&mut self, write: &mut ClientWrite) {
        let Some(gpu) = self.gpus.get_mut(&write.gpu) else { return };
        if gpu.manual.as_ref().is_some_and(|manual| manual.by == write.request.by) {
            gpu.manual = write.before.take().filter(|before| !has_ended(before));
            gpu.external = gpu.external.or(write.external_before.take());
            self.jobs.replan_all(ReplanReason::OverrideEnded);
        }
    }

    /// If the GPU reports another limit than a client's write requests, returns the reported limit and the reason.
    fn limit_instead(&self, write: &ClientWrite) -> Option<(Option<PowerLimit>, String)> {
        let Setting::PowerLimit(requested) = write.setting else { return None };
        let gpu = self.gpus.get(&write.gpu)?;
        let shown = gpu.observed.reading.requested;
        if shown.is_some_and(|shown| shown.same_as(requested) || gpu.has_rounded(requested, shown)) {
            return None;
        }
        let manual = gpu.manual.as_ref().filter(|manual| manual.by == write.request.by);
        let why = match manual.map(|manual| manual.limit) {
            None => "the override ended before the limit was written".into(),
            Some(wanted) if shown.is_some_and(|shown| shown.same_as(wanted) || gpu.has_rounded(wanted, shown)) => {
                not_permitted(requested, wanted)
            }
            Some(wanted) => deferred(requested, wanted),
        };
        Some((shown, why))
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

    /// Checks that a write may begin now.
    ///
    /// # Errors
    /// As [`Self::check_request`]; or if the client's process has ended, the GPU does not answer, or it accepts no such
    /// limit.
    pub(super) fn check_write(&self, write: &ClientWrite) -> Result<(), WriteRefused> {
        self.check_request(&write.gpu, &write.request)?;
        refuse_ended_client(&write.request)?;
        let Some(gpu) = self.gpus.get(&write.gpu) else { return Ok(()) };
        if let Some((error, _)) = &gpu.observed.fault {
            return Err(error.clone().into());
        }
        write.setting.power_limit().map_or(Ok(()), |limit| check_limit(gpu, limit))
    }

    /// Begins a write: makes its override, and sends the setting to the GPU unless it is in force already.
    async fn begin_write(&mut self, write: &mut ClientWrite) -> Result<WriteStep, WriteRefused> {
        self.check_write(write)?;
        let now = self.now();
        let Some(gpu) = self.gpus.get(&write.gpu) else { return Ok(WriteStep::Pending) };
        let current = gpu.observed.reading.requested;
        let current = current.ok_or_else(|| unreported(&gpu.handle.capabilities().limit))?;
        let manual = self.override_for(write, gpu, current);
        let (limit, external) = (manual.limit, gpu.external);
        let is_other = |present: &Override| present.by != manual.by || present.limit != limit;
        let is_new = gpu.manual.as_ref().is_none_or(is_other) || external.is_some();
        if write.tries == 0 || gpu.manual.as_ref().is_none_or(|present| present.by != manual.by) {
            write.before.clone_from(&gpu.manual);
            write.external_before = external;
        }
        if let Some(gpu) = self.gpus.get_mut(&write.gpu) {
            gpu.replace_override(manual);
        }
        if is_new {
            tracing::info!(gpu.uuid = %write.gpu, power.limit_w = limit.watts().get(), caller = %write.request.by,
                "GPU {}: manual override of {limit} by a Zeus client began", write.gpu);
            self.replan(ReplanReason::OverrideBegan).await;
        }
        write.stage = Stage::Sent;
        if write.setting.power_limit().is_some() && current.same_as(limit) && !is_new {
            return Ok(WriteStep::Done);
        }
        if let Some(gpu) = self.gpus.get_mut(&write.gpu) {
            gpu.write_for(WriteRequest { by: write.request.by.clone(), limit: write.setting.power_limit() });
        }
        let unsent = match write.setting {
            Setting::PowerLimit(_) => {
                self.act();
                self.gpus.get_mut(&write.gpu).and_then(|gpu| gpu.unjournalled.take())
            }
            Setting::Other(setting) => self.gpus.send_setting(&write.gpu, setting, current, now).err(),
        };
        let Some(gpu) = self.gpus.get_mut(&write.gpu) else { return Ok(WriteStep::Pending) };
        write.is_written = gpu.has_written_for();
        if let Some(why) = unsent {
            gpu.external = external;
            return Err(WriteRefused::Journal(why));
        }
        if write.setting.power_limit().is_some() && !write.is_written && gpu.is_writing() {
            // Another setting, such as persistence mode, has to be written first.
            return try_again(write, Ok(()));
        }
        gpu.observe();
        if gpu.is_writing() {
            return Ok(WriteStep::Pending);
        }
        self.finish_write(write)
    }

    /// Returns the override that a client's write makes on `gpu`, whose limit is `current`.
    fn override_for(&self, write: &ClientWrite, gpu: &Gpu, current: PowerLimit) -> Override {
        let limit = match write.setting {
            Setting::PowerLimit(limit) => limit.min(self.gpus.ceiling(&write.gpu).unwrap_or(limit)),
            // The node's cap or a job may have lowered the present limit; the override would keep that for longer.
            Setting::Other(_) => match (&gpu.manual, gpu.external) {
                (Some(manual), _) => manual.limit,
                (None, Some(_)) => current,
                (None, None) => self.gpus.original_limit(&write.gpu).unwrap_or(current),
            },
        };
        let held = gpu.manual.as_ref().filter(|manual| manual.by.is_zeus());
        Override {
            limit,
            end: write.request.end,
            by: write.request.by.clone(),
            yields_to_jobs: !write.request.over_jobs,
            locks_clocks: held.is_some_and(|manual| manual.locks_clocks),
            locks_memory: held.is_some_and(|manual| manual.locks_memory),
        }
    }

    fn finish_write(&mut self, write: &mut ClientWrite) -> Result<WriteStep, WriteRefused> {
        match write.setting {
            Setting::PowerLimit(_) => self.finish_limit(write),
            Setting::Other(setting) => self.finish_setting(write, setting),
        }
    }

    fn finish_limit(&mut self, write: &mut ClientWrite) -> Result<WriteStep, WriteRefused> {
        let Some(gpu) = self.gpus.get_mut(&write.gpu) else { return Ok(WriteStep::Pending) };
        let ours = gpu.manual.as_ref().filter(|manual| manual.by == write.request.by);
        let Some(manual) = ours else {
            // An external writer was faster, or the override has ended since.
            let taken = gpu.external.map(|external| {
                let (call, current) = (Write::PowerLimit(external.limit).call(), external.limit);
                GpuError::LimitChanged { call, current }
            });
            return taken.map_or(Ok(WriteStep::Done), |error| try_again(write, Err(error.into())));
        };
        let limit = manual.limit;
        if let Some(error) = gpu.limit_error(limit) {
            return Err(error.into());
        }
        if let Some(Err(error @ (GpuError::LimitChanged { .. } | GpuError::LimitUnknown { .. }))) =
            gpu.sent(Write::PowerLimit(limit))
        {
            return try_again(write, Err(error.into()));
        }
        Ok(WriteStep::Done)
    }

    fn finish_setting(&mut self, write: &mut ClientWrite, setting: Write) -> Result<WriteStep, WriteRefused> {
        let Some(gpu) = self.gpus.get_mut(&write.gpu) else { return Ok(WriteStep::Pending) };
        let Some(result) = gpu.sent(setting) else {
            return try_again(write, Err(WriteRefused::Unfinished));
        };
        result?;
        Ok(WriteStep::Done)
    }

    async fn replan(&mut self, why: ReplanReason) {
        if self.jobs.iter().next().is_some() {
            self.jobs.replan_all(why);
            self.plan().await;
        }
    }
}

/// Adds the GPU's limit from before the action to the record of a write of a limit.
pub(super) fn with_limit_before(record: AuditRecord, before: Option<PowerLimit>) -> AuditRecord {
    let before = before.filter(|_| record.action == AuditAction::SetPowerLimit);
    AuditRecord { before: before.map(AuditState::power_limit), ..record }
}

/// Begins a write again; if that was done too often, ends it with `outcome`.
fn try_again(write: &mut ClientWrite, outcome: Result<(), WriteRefused>) -> Result<WriteStep, WriteRefused> {
    write.tries += 1;
    write.is_written = false;
    write.stage = Stage::New;
    if write.tries > TRIES { outcome.map(|()| WriteStep::Done) } else { Ok(WriteStep::Pending) }
}

/// Returns whether the process with which an override ends has ended: it may have, while another client's write that
/// failed since was in force.
fn has_ended(held: &Override) -> bool {
    let process = held.by.zeus_process().filter(|_| held.end == OverrideEnd::WithProcess);
    process.is_some_and(|process| !cpu::is_running(Path::new("/proc"), process))
}

/// Refuses the write of a process that has ended: its override would end at once.
fn refuse_ended_client(request: &OverrideRequest) -> Result<(), WriteRefused> {
    match (request.end, request.by.zeus_process()) {
        (OverrideEnd::WithProcess, Some(process)) if !cpu::is_running(Path::new("/proc"), process) => {
            Err(WriteRefused::Owned(format!("the client, process {}, has ended", process.pid)))
        }
        _ => Ok(()),
    }
}

fn unreported(limit: &Result<(), GpuError>) -> GpuError {
    limit.clone().err().unwrap_or(GpuError::NotSupported { call: "nvmlDeviceGetPowerManagementLimit" })
}

/// Checks that the GPU's limit can be set to `limit`.
fn check_limit(gpu: &Gpu, limit: PowerLimit) -> Result<(), WriteRefused> {
    let can = gpu.handle.capabilities();
    if can.mig || can.virtualised {
        return Err(WriteRefused::Impossible(can.why_no_control().unwrap_or_default()));
    }
    match &can.limits {
        Err(error) => Err(error.clone().into()),
        Ok(range) if (range.min..=range.max).contains(&limit) => Ok(()),
        Ok(range) => Err(WriteRefused::OutOfRange { limit, min: range.min, max: range.max }),
    }
}
