//! Carries out the requests of clients of other protocols to change a setting of a GPU. Each is a manual override that
//! its client owns.
//!
//! The driver may be slow, so a write is done in steps, between which the control loop continues. The end of a write to
//! a GPU wakes the loop: one turn ends the write and begins the command's next one. After the last, the loop's next turn
//! begins the next command. The client gets its answer as soon as the driver has accepted the last write, or at the end.

use std::path::Path;

use crate::controller::Controller;
use crate::controller::gpus::{Gpu, Override, OverrideEnd, WriteRequest};
use crate::controller::planning::ReplanReason;
use crate::controller::requests::audit_values::{deferred, not_permitted, replaced_by_later};
use crate::controller::requests::client_commands::{
    ClientCommand, ClientWrite, OverrideRequest, ReplacedCommand, Setting, Stage, WriteRefused,
};
use crate::cpu;
use crate::gpu::{GpuError, Write};
use crate::store::{AuditAction, AuditOutcome, AuditRecord, AuditState};
use wattune_core::domain::{GpuId, PowerLimit, Process};

/// Number of times that a write is tried again because an external writer changed the limit, or another setting was written
/// first.
const TRIES: u32 = 3;

impl Controller {
    /// Checks that a client may change a GPU now.
    ///
    /// # Errors
    /// In observe mode; or if a job or a manual override of the daemon's own API controls the GPU, unless the request
    /// takes precedence over both.
    fn check_request(&self, id: &GpuId, request: &OverrideRequest) -> Result<(), WriteRefused> {
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

    /// Queues a client's command, which is carried out after those that wait for the same GPU. A command for whose outcome
    /// the client does not wait is queued only if the client may change the GPU now.
    pub(in crate::controller) async fn queue_client_command(&mut self, command: ClientCommand) {
        let gpu = command.gpu.clone();
        let (command, refused) = match self.check_unawaited(&command) {
            Ok(()) => match self.gpus.client_commands().push(command) {
                Ok(is_first) => {
                    if is_first {
                        self.continue_commands_of(&gpu).await;
                    }
                    return;
                }
                Err(command) => (*command, WriteRefused::TooMany),
            },
            Err(refused) => (command, refused),
        };
        self.audit_unsent(&command, &refused);
        command.end(Err(refused));
    }

    /// Continues the clients' commands as far as the GPUs have ended their writes.
    pub(in crate::controller) async fn continue_client_commands(&mut self) {
        for command in self.gpus.client_commands().take_given_up() {
            self.audit_unsent(&command, &WriteRefused::GivenUp);
        }
        for gpu in self.gpus.client_commands().gpus() {
            self.continue_commands_of(&gpu).await;
        }
        self.audit_many_writes();
    }

    fn check_unawaited(&self, command: &ClientCommand) -> Result<(), WriteRefused> {
        match command.writes.front().filter(|_| !command.is_awaited()) {
            Some(write) => self.check_request(&write.gpu, &write.request),
            None => Ok(()),
        }
    }

    fn audit_unsent(&mut self, command: &ClientCommand, refused: &WriteRefused) {
        let before = self.gpus.get(&command.gpu).and_then(|gpu| gpu.observed.reading.requested);
        for record in command.records_of_unsent(self.now().utc, refused) {
            self.audit(with_limit_before(record, before));
        }
    }

    /// Ends the clients' commands, because the control loop ends. Writes that have not begun are refused; of those that
    /// have, the outcome is not known.
    pub(in crate::controller) fn refuse_client_commands(&mut self, not_queued: Vec<ClientCommand>) {
        self.gpus.observe();
        for command in self.gpus.client_commands().take_all().into_iter().chain(not_queued) {
            if let Some(write) = command.writes.front().filter(|write| write.has_begun()) {
                let is_writing = self.gpus.get(&write.gpu).is_some_and(Gpu::is_writing);
                if is_writing || !write.is_written {
                    self.audit_client_write(write, None, &Err(WriteRefused::Unfinished));
                }
            }
            self.audit_unsent(&command, &WriteRefused::Ending);
            command.end(Err(WriteRefused::Ending));
        }
    }

    /// Continues the first command of a GPU. If it ends, the next one has the loop's next turn, so that commands that
    /// need no write, of which each may need a new plan, do not hold up ticks.
    async fn continue_commands_of(&mut self, gpu: &GpuId) {
        let Some(mut command) = self.take_next(gpu) else { return };
        if !self.carry_out(&mut command).await {
            if self.gpus.get(gpu).is_some_and(Gpu::has_accepted_for_caller) {
                command.end_early();
            }
            return self.gpus.client_commands().put_back(command);
        }
        let outcome = std::mem::replace(&mut command.outcome, Ok(()));
        let replaced = std::mem::take(&mut command.replaced);
        match outcome {
            Ok(()) => self.end_replaced(replaced),
            Err(_) => self.gpus.client_commands().put_back_replaced(replaced),
        }
        command.end(outcome);
        if self.gpus.client_commands().has(gpu) {
            self.gpus.write_progress().notify_one();
        }
    }

    /// Takes the command of a GPU's queue that is to be carried out next. If too many wait, that is the last one of the
    /// surplus, which replaces the others. Those that may not be carried out end at once.
    fn take_next(&mut self, gpu: &GpuId) -> Option<ClientCommand> {
        if self.gpus.get(gpu).is_some_and(Gpu::is_writing) {
            return self.gpus.client_commands().take_first(gpu);
        }
        let limit = self.gpus.get(gpu).and_then(|gpu| gpu.observed.reading.requested);
        let mut next: Option<ClientCommand> = None;
        while let Some(mut command) = self.gpus.client_commands().take_surplus(gpu) {
            if let Err(refused) = command.waiting_limit().map_or(Ok(()), |(write, _)| self.check_write(write)) {
                self.audit_unsent(&command, &refused);
                command.end(Err(refused));
                continue;
            }
            if let Some(before) = next.take() {
                command.replace(before, limit);
            }
            next = Some(command);
        }
        next.or_else(|| self.gpus.client_commands().take_first(gpu))
    }

    /// Ends commands that a successful one has replaced.
    fn end_replaced(&mut self, replaced: Vec<ReplacedCommand>) {
        for ReplacedCommand { command, limit } in replaced {
            if command.is_given_up() {
                self.audit_unsent(&command, &WriteRefused::GivenUp);
                command.end(Err(WriteRefused::GivenUp));
                continue;
            }
            if let Some((write, requested)) = command.waiting_limit() {
                let in_force = self.gpus.get(&write.gpu).and_then(|gpu| gpu.observed.reading.requested);
                let record = with_limit_before(write.record(self.now().utc), limit);
                let why = replaced_by_later(requested);
                self.audit(AuditRecord {
                    after: in_force.map(AuditState::power_limit),
                    ..record.with_outcome(AuditOutcome::NotEnforced, why)
                });
            }
            command.end(Ok(()));
        }
    }

    /// Carries out a command up to its end, or until the GPU has to end a write first. Returns whether it has ended.
    async fn carry_out(&mut self, command: &mut ClientCommand) -> bool {
        while !command.writes.is_empty() {
            if command.is_given_up() {
                self.audit_unsent(command, &WriteRefused::GivenUp);
                command.writes.clear();
                command.outcome = std::mem::replace(&mut command.outcome, Ok(())).and(Err(WriteRefused::GivenUp));
                break;
            }
            let Some(write) = command.writes.front_mut() else { break };
            match self.step_client_write(write).await {
                Some(outcome) => {
                    command.writes.pop_front();
                    // Of several errors the first one counts, and the later writes are tried all the same.
                    if command.outcome.is_ok() {
                        command.outcome = outcome;
                    }
                }
                None if self.gpus.get(&command.gpu).is_some_and(Gpu::is_writing) => return false,
                // The write has to begin again.
                None => {}
            }
        }
        true
    }

    /// Does the next step of a client's write. Returns the outcome once it is known.
    async fn step_client_write(&mut self, write: &mut ClientWrite) -> Option<Result<(), WriteRefused>> {
        let Some(gpu) = self.gpus.get_mut(&write.gpu) else {
            return Some(Err(GpuError::Lost { call: "nvmlDeviceGetHandleByIndex_v2" }.into()));
        };
        gpu.observe();
        if gpu.is_writing() {
            return None;
        }
        let before = gpu.observed.reading.requested;
        let outcome = match write.stage {
            Stage::New => self.begin_write(write).await,
            Stage::Sent => self.finish_write(write),
        };
        let outcome = outcome.transpose()?;
        if outcome.is_err() && write.has_begun() {
            self.put_back_override(write);
        }
        if !write.is_written {
            self.audit_client_write(write, before, &outcome);
        }
        Some(outcome)
    }

    /// Records a client's write that was refused, or that changed nothing.
    fn audit_client_write(
        &mut self,
        write: &ClientWrite,
        before: Option<PowerLimit>,
        outcome: &Result<(), WriteRefused>,
    ) {
        let record = with_limit_before(write.record(self.now().utc), before);
        let in_force = write.setting.power_limit().and_then(|_| self.gpus.get(&write.gpu)?.observed.reading.requested);
        self.audit(match (outcome, self.limit_instead(write)) {
            (Err(refused), _) => record.with_outcome(refused.outcome(), refused.to_string()),
            (Ok(()), Some((shown, why))) => AuditRecord {
                after: shown.map(AuditState::power_limit),
                ..record.with_outcome(AuditOutcome::NotEnforced, why)
            },
            // The limit in force may differ: one within half a watt of it is not written, and GPUs round.
            (Ok(()), None) => AuditRecord { after: in_force.map(AuditState::power_limit).or(record.after), ..record },
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
    fn check_write(&self, write: &ClientWrite) -> Result<(), WriteRefused> {
        self.check_request(&write.gpu, &write.request)?;
        refuse_ended_client(&write.request)?;
        let Some(gpu) = self.gpus.get(&write.gpu) else { return Ok(()) };
        if let Some((error, _)) = &gpu.observed.fault {
            return Err(error.clone().into());
        }
        write.setting.power_limit().map_or(Ok(()), |limit| check_limit(gpu, limit))
    }

    async fn begin_write(&mut self, write: &mut ClientWrite) -> Result<Option<()>, WriteRefused> {
        self.check_write(write)?;
        let (now, ceiling) = (self.now(), self.gpus.ceiling(&write.gpu));
        let original = self.gpus.original_limit(&write.gpu);
        let Some(gpu) = self.gpus.get_mut(&write.gpu) else { return Ok(None) };
        let can = gpu.handle.capabilities();
        let current = gpu.observed.reading.requested.ok_or_else(|| unreported(&can.limit))?;
        let (present, external) = (gpu.manual.clone(), gpu.external);
        if write.tries == 0 || present.as_ref().is_none_or(|manual| manual.by != write.request.by) {
            write.before.clone_from(&present);
            write.external_before = external;
        }
        let held = present.as_ref().filter(|manual| manual.by.is_zeus());
        let limit = match write.setting {
            Setting::PowerLimit(limit) => limit.min(ceiling.unwrap_or(limit)),
            // The node's cap or a job may have lowered the present limit; the override would keep that for longer.
            Setting::Other(_) => match (&present, external) {
                (Some(manual), _) => manual.limit,
                (None, Some(_)) => current,
                (None, None) => original.unwrap_or(current),
            },
        };
        let manual = Override {
            limit,
            end: write.request.end,
            by: write.request.by.clone(),
            yields_to_jobs: !write.request.over_jobs,
            locks_clocks: held.is_some_and(|manual| manual.locks_clocks),
            locks_memory: held.is_some_and(|manual| manual.locks_memory),
        };
        let is_new = present.as_ref().is_none_or(|present| present.by != manual.by || present.limit != limit)
            || external.is_some();
        gpu.replace_override(manual);
        if is_new {
            tracing::info!(gpu.uuid = %write.gpu, power.limit_w = limit.watts().get(), caller = %write.request.by,
                "GPU {}: override of {limit}", write.gpu);
            self.replan(ReplanReason::OverrideBegan).await;
        }
        write.stage = Stage::Sent;
        if write.setting.power_limit().is_some() && current.same_as(limit) && !is_new {
            return Ok(Some(()));
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
        let Some(gpu) = self.gpus.get_mut(&write.gpu) else { return Ok(None) };
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
            return Ok(None);
        }
        self.finish_write(write)
    }

    fn finish_write(&mut self, write: &mut ClientWrite) -> Result<Option<()>, WriteRefused> {
        match write.setting {
            Setting::PowerLimit(_) => self.finish_limit(write),
            Setting::Other(setting) => self.finish_setting(write, setting),
        }
    }

    fn finish_limit(&mut self, write: &mut ClientWrite) -> Result<Option<()>, WriteRefused> {
        let Some(gpu) = self.gpus.get_mut(&write.gpu) else { return Ok(None) };
        let ours = gpu.manual.as_ref().filter(|manual| manual.by == write.request.by);
        let Some(manual) = ours else {
            // An external writer was faster, or the override has ended since.
            let taken = gpu.external.map(|external| {
                let (call, current) = (Write::PowerLimit(external.limit).call(), external.limit);
                GpuError::LimitChanged { call, current }
            });
            return taken.map_or(Ok(Some(())), |error| try_again(write, Err(error.into())));
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
        Ok(Some(()))
    }

    fn finish_setting(&mut self, write: &mut ClientWrite, setting: Write) -> Result<Option<()>, WriteRefused> {
        let Some(gpu) = self.gpus.get_mut(&write.gpu) else { return Ok(None) };
        let Some(result) = gpu.sent(setting) else {
            return try_again(write, Err(WriteRefused::Unfinished));
        };
        // The override may have been replaced meanwhile, and then is not this client's any more.
        let is_ours = gpu.manual.as_ref().is_some_and(|manual| manual.by == write.request.by);
        if is_ours {
            gpu.settle_client_lock(setting, result.is_ok());
        }
        result?;
        Ok(Some(()))
    }

    async fn replan(&mut self, why: ReplanReason) {
        if self.jobs.iter().next().is_some() {
            self.jobs.replan_all(why);
            self.plan().await;
        }
    }
}

/// Adds the GPU's limit from before the action to the record of a write of a limit.
fn with_limit_before(record: AuditRecord, before: Option<PowerLimit>) -> AuditRecord {
    let before = before.filter(|_| record.action == AuditAction::SetPowerLimit);
    AuditRecord { before: before.map(AuditState::power_limit), ..record }
}

/// Begins a write again; if that was done too often, ends it with `outcome`.
fn try_again(write: &mut ClientWrite, outcome: Result<(), WriteRefused>) -> Result<Option<()>, WriteRefused> {
    write.tries += 1;
    write.is_written = false;
    write.stage = Stage::New;
    if write.tries > TRIES { outcome.map(Some) } else { Ok(None) }
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
        Ok(_) => Err(WriteRefused::OutOfRange),
    }
}
