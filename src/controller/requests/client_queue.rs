//! The queue of clients' commands to change settings of a GPU: which command is carried out next, which ones it
//! replaces, and when the client gets its answer.
//!
//! The end of a write to a GPU wakes the control loop: one turn ends the write and begins the command's next one. After
//! the last, the loop's next turn begins the next command. The client gets its answer as soon as the driver has accepted
//! the last write, or at the end.

use crate::controller::Controller;
use crate::controller::gpus::Gpu;
use crate::controller::requests::audit_values::replaced_by_later;
use crate::controller::requests::client_commands::{ClientCommand, ReplacedCommand, WriteRefused};
use crate::controller::requests::client_write::{WriteStep, with_limit_before};
use crate::store::{AuditOutcome, AuditRecord, AuditState};
use wattune_core::domain::GpuId;

impl Controller {
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
                    self.audit_client_write(write, None, Some(&WriteRefused::Unfinished));
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
            let outcome = match self.step_client_write(write).await {
                Ok(WriteStep::Done) => Ok(()),
                Ok(WriteStep::Pending) if self.gpus.get(&command.gpu).is_some_and(Gpu::is_writing) => return false,
                // The write has to begin again.
                Ok(WriteStep::Pending) => continue,
                Err(refused) => Err(refused),
            };
            command.writes.pop_front();
            // Of several errors the first one counts, and the later writes are tried all the same.
            if command.outcome.is_ok() {
                command.outcome = outcome;
            }
        }
        true
    }
}
