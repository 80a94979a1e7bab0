//! Requests of clients of other protocols to change settings of a GPU, until they are carried out. Those to one GPU are
//! carried out strictly in order, those to different GPUs at the same time.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use chrono::{DateTime, Utc};
use tokio::sync::oneshot;

use crate::controller::gpus::{Override, OverrideEnd};
use crate::controller::requests::Caller;
use crate::controller::requests::audit_values::action_of;
use crate::gpu::journal::ExternalLimit;
use crate::gpu::{GpuError, Write};
use crate::store::{AuditAction, AuditOutcome, AuditRecord, AuditState};
use wattune_core::domain::{GpuId, PowerLimit};

/// Maximum number of commands that wait for one GPU, with the one that is carried out.
const MOST_WAITING: usize = 256;
/// Length of a GPU's queue, with the command in progress, up to which no command is replaced by a later one.
const MOST_IN_TURN: usize = 8;

/// Identity and rights of a client that writes, and the end of the override that its write makes.
#[derive(Clone, Debug)]
pub struct OverrideRequest {
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

impl Setting {
    /// Returns the action that sets it, and the state that is requested.
    fn describe(self) -> (AuditAction, Option<AuditState>) {
        match self {
            Self::PowerLimit(limit) => (AuditAction::SetPowerLimit, Some(AuditState::power_limit(limit))),
            Self::Other(write) => action_of(write),
        }
    }

    /// Returns the power limit that it sets; `None` for another setting.
    pub(super) const fn power_limit(self) -> Option<PowerLimit> {
        match self {
            Self::PowerLimit(limit) => Some(limit),
            Self::Other(_) => None,
        }
    }
}

/// Reason why a client's write was refused or failed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum WriteRefused {
    /// Another owner controls the GPU, or this daemon controls none.
    #[error("{0}")]
    Owned(String),
    /// The GPU accepts no such limit.
    #[error("{limit} is outside the GPU's range, {min} to {max}")]
    OutOfRange {
        /// The requested limit.
        limit: PowerLimit,
        /// The GPU's lowest limit.
        min: PowerLimit,
        /// The GPU's highest limit.
        max: PowerLimit,
    },
    /// The GPU's limit cannot be set, whatever it is.
    #[error("{0}")]
    Impossible(String),
    /// The driver refused.
    #[error(transparent)]
    Device(#[from] GpuError),
    /// The GPU has too many requests waiting.
    #[error("{MOST_WAITING} writes to the GPU are waiting; try again later")]
    TooMany,
    /// The client's time was over before the write began.
    #[error("the writes before it took too long; nothing was changed")]
    GivenUp,
    /// The daemon ended before the write began.
    #[error("the daemon ended before the write began; nothing was changed")]
    Ending,
    /// The daemon ended, or the write was tried too often, before its outcome was known.
    #[error("it is unknown whether the setting was written; read it back before you try again")]
    Unfinished,
    /// The journal cannot be written, so nothing was changed.
    #[error("nothing is changed: {0}; the original setting could not be restored later")]
    Journal(String),
}

impl WriteRefused {
    /// Returns the outcome of the write for the audit log.
    pub(super) const fn outcome(&self) -> AuditOutcome {
        match self {
            Self::Owned(_) | Self::OutOfRange { .. } | Self::Impossible(_) | Self::TooMany => AuditOutcome::Refused,
            Self::Device(_) | Self::GivenUp | Self::Ending | Self::Unfinished | Self::Journal(_) => {
                AuditOutcome::Failed
            }
        }
    }
}

/// Write of one setting of a GPU, until its outcome is known.
#[derive(Clone, Debug)]
pub(super) struct ClientWrite {
    pub(super) gpu: GpuId,
    pub(super) setting: Setting,
    pub(super) request: OverrideRequest,
    pub(super) stage: Stage,
    pub(super) tries: u32,
    /// The override that is put back if the write fails: the one from before the first try, or the one found at a later
    /// try, if this client's had ended by then.
    pub(super) before: Option<Override>,
    /// The external limit that is put back with it.
    pub(super) external_before: Option<ExternalLimit>,
    /// True if the setting was written to the GPU; the write then has a record of its own in the audit log.
    pub(super) is_written: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Stage {
    New,
    Sent,
}

/// Request of a client to change settings of a GPU, one after the other.
#[derive(Debug)]
pub struct ClientCommand {
    pub(super) gpu: GpuId,
    /// Writes that have not ended; the first one is being carried out.
    pub(super) writes: VecDeque<ClientWrite>,
    /// Outcome so far. Of several errors the first one counts.
    pub(super) outcome: Result<(), WriteRefused>,
    /// True if the client waits for the outcome, false if only until the command is queued.
    is_awaited: bool,
    /// Earlier commands whose limits are not written, because this command's limit follows at once. They are carried out
    /// after it if it fails.
    pub(super) replaced: Vec<ReplacedCommand>,
    /// False if a command that was to replace this one has failed.
    is_replaceable: bool,
    /// Sending end of the answer; `None` once the client has it.
    reply: Option<oneshot::Sender<Result<(), WriteRefused>>>,
    given_up: Arc<AtomicBool>,
}

/// Command that a later one replaces.
#[derive(Debug)]
pub(super) struct ReplacedCommand {
    pub(super) command: ClientCommand,
    /// The GPU's limit when the command was replaced.
    pub(super) limit: Option<PowerLimit>,
}

/// Waiting end of a [`ClientCommand`].
#[derive(Debug)]
pub struct ClientWait {
    outcome: oneshot::Receiver<Result<(), WriteRefused>>,
    given_up: Arc<AtomicBool>,
}

impl ClientWrite {
    /// Returns a write that has not begun.
    fn new(gpu: GpuId, setting: Setting, request: OverrideRequest) -> Self {
        Self {
            gpu,
            setting,
            request,
            stage: Stage::New,
            tries: 0,
            before: None,
            external_before: None,
            is_written: false,
        }
    }

    /// Returns whether the write has changed something, or may have.
    pub(super) const fn has_begun(&self) -> bool {
        matches!(self.stage, Stage::Sent) || self.tries > 0
    }

    /// Returns a record of the write as it was requested.
    pub(super) fn record(&self, at: DateTime<Utc>) -> AuditRecord {
        let (action, after) = self.setting.describe();
        let record = AuditRecord::new(at, self.request.by.to_string(), action);
        AuditRecord { gpu: Some(self.gpu.to_string()), after, ..record }
    }
}

impl ClientCommand {
    /// Returns a command, and the end at which its client waits: for the outcome, or if not `is_awaited`, for the news that
    /// the command is queued.
    pub fn new(gpu: &GpuId, settings: &[Setting], request: &OverrideRequest, is_awaited: bool) -> (Self, ClientWait) {
        let (reply, outcome) = oneshot::channel();
        let given_up = Arc::<AtomicBool>::default();
        let write = |setting: &Setting| ClientWrite::new(gpu.clone(), *setting, request.clone());
        let command = Self {
            gpu: gpu.clone(),
            writes: settings.iter().map(write).collect(),
            outcome: Ok(()),
            is_awaited,
            replaced: Vec::new(),
            is_replaceable: true,
            reply: Some(reply),
            given_up: Arc::clone(&given_up),
        };
        (command, ClientWait { outcome, given_up })
    }

    /// Returns whether the client waits for the outcome.
    pub(super) const fn is_awaited(&self) -> bool {
        self.is_awaited
    }

    /// Returns the write and its limit if it is the command's only one, sets a power limit and has not begun.
    pub(super) fn waiting_limit(&self) -> Option<(&ClientWrite, PowerLimit)> {
        let only = self.writes.front().filter(|write| self.writes.len() == 1 && !write.has_begun())?;
        Some((only, only.setting.power_limit()?))
    }

    /// Takes the place of an earlier command, and of those that it has replaced. `limit` is the GPU's present limit.
    pub(super) fn replace(&mut self, mut earlier: Self, limit: Option<PowerLimit>) {
        self.replaced = std::mem::take(&mut earlier.replaced);
        self.replaced.push(ReplacedCommand { command: earlier, limit });
    }

    /// Returns whether the client's time is over before the next write has begun.
    pub(super) fn is_given_up(&self) -> bool {
        self.writes.front().is_some_and(|write| !write.has_begun()) && self.given_up.load(Ordering::Relaxed)
    }

    /// Returns a record for each of the command's writes that has not begun, with `refused` as the reason why it never
    /// will.
    pub fn records_of_unsent(&self, at: DateTime<Utc>, refused: &WriteRefused) -> Vec<AuditRecord> {
        let unsent = self.writes.iter().filter(|write| !write.has_begun());
        unsent.map(|write| write.record(at).with_outcome(refused.outcome(), refused.to_string())).collect()
    }

    /// Tells the client that the command has succeeded, if the driver's acceptance of the present write decides that: it is
    /// the last one, and all before have succeeded. The outcome is recorded once the GPU has been read back.
    pub(super) fn end_early(&mut self) {
        let decides = self.writes.len() == 1 && self.writes.front().is_some_and(|write| write.is_written);
        if let Some(reply) = self.reply.take_if(|_| decides && self.outcome.is_ok()) {
            // The client may have stopped waiting.
            drop(reply.send(Ok(())));
        }
    }

    /// Ends the command: the client gets the outcome.
    pub(super) fn end(self, outcome: Result<(), WriteRefused>) {
        match (self.reply, outcome) {
            (Some(reply), outcome) => {
                if let Err(WriteRefused::Device(error)) = &outcome {
                    tracing::warn!("a Zeus client's write failed: {error}");
                }
                // The client may have stopped waiting.
                drop(reply.send(outcome));
            }
            (None, Err(refused)) => {
                tracing::warn!("a Zeus client's write failed after the client had its answer: {refused}");
            }
            (None, Ok(())) => {}
        }
    }
}

impl ClientWait {
    /// Waits for the answer; `None` if the controller ends before.
    pub async fn answer(&mut self) -> Option<Result<(), WriteRefused>> {
        (&mut self.outcome).await.ok()
    }

    /// States that the client gets the answer that its time is over: writes that have not begun then do not begin any
    /// more.
    pub fn give_up(&self) {
        self.given_up.store(true, Ordering::Relaxed);
    }
}

/// Waiting commands of each GPU; the first one of each is being carried out.
#[derive(Debug, Default)]
pub(in crate::controller) struct ClientCommands(BTreeMap<GpuId, VecDeque<ClientCommand>>);

impl ClientCommands {
    /// Adds a command to its GPU's queue. Returns whether it is the first one there.
    ///
    /// # Errors
    /// The command itself, if too many wait.
    pub(super) fn push(&mut self, mut command: ClientCommand) -> Result<bool, Box<ClientCommand>> {
        let queue = match self.0.get_mut(&command.gpu) {
            Some(queue) => queue,
            None => self.0.entry(command.gpu.clone()).or_default(),
        };
        if queue.len() >= MOST_WAITING {
            return Err(Box::new(command));
        }
        if let Some(reply) = command.reply.take_if(|_| !command.is_awaited) {
            let _ = reply.send(Ok(()));
        }
        queue.push_back(command);
        Ok(queue.len() == 1)
    }

    /// Returns whether a client waits for the outcome of a command.
    pub(in crate::controller) fn is_awaited(&self) -> bool {
        self.0.values().any(|queue| queue.front().is_some_and(|first| first.reply.is_some()))
    }

    /// Takes the first command of a GPU's queue, to be put back by [`Self::put_back`] unless it has ended.
    pub(super) fn take_first(&mut self, gpu: &GpuId) -> Option<ClientCommand> {
        self.0.get_mut(gpu)?.pop_front()
    }

    /// Takes the first command of a GPU's queue if too many wait and a later one may replace it.
    pub(super) fn take_surplus(&mut self, gpu: &GpuId) -> Option<ClientCommand> {
        let queue = self.0.get_mut(gpu).filter(|queue| queue.len() >= MOST_IN_TURN)?;
        queue.pop_front_if(|first| first.is_replaceable && first.waiting_limit().is_some())
    }

    /// Puts commands that a failed command was to replace back to the head of their GPU's queue.
    pub(super) fn put_back_replaced(&mut self, replaced: Vec<ReplacedCommand>) {
        for ReplacedCommand { command, .. } in replaced.into_iter().rev() {
            self.put_back(ClientCommand { is_replaceable: false, ..command });
        }
    }

    /// Puts a command back to the head of its GPU's queue.
    pub(super) fn put_back(&mut self, command: ClientCommand) {
        if let Some(queue) = self.0.get_mut(&command.gpu) {
            queue.push_front(command);
        }
    }

    /// Takes the commands whose clients' time is over before their next write has begun.
    pub(super) fn take_given_up(&mut self) -> Vec<ClientCommand> {
        let mut taken = Vec::new();
        for queue in self.0.values_mut().filter(|queue| queue.iter().any(ClientCommand::is_given_up)) {
            let (given_up, kept) = std::mem::take(queue).into_iter().partition(ClientCommand::is_given_up);
            taken.extend::<VecDeque<_>>(given_up);
            *queue = kept;
        }
        taken
    }

    /// Takes all commands, of each GPU the oldest first.
    pub(super) fn take_all(&mut self) -> Vec<ClientCommand> {
        let mut taken = Vec::new();
        for mut command in std::mem::take(&mut self.0).into_values().flatten() {
            taken.extend(command.replaced.drain(..).map(|replaced| replaced.command));
            taken.push(command);
        }
        taken
    }

    /// Returns whether commands wait for a GPU.
    pub(super) fn has(&self, gpu: &GpuId) -> bool {
        self.0.get(gpu).is_some_and(|queue| !queue.is_empty())
    }

    /// Returns the GPUs that have waiting commands.
    pub(super) fn gpus(&self) -> Vec<GpuId> {
        self.0.iter().filter(|(_, queue)| !queue.is_empty()).map(|(gpu, _)| gpu.clone()).collect()
    }
}
