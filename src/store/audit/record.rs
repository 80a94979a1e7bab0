//! One record of the audit log.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Name under which the audit log lists actions of the daemon itself.
pub const DAEMON: &str = "wattune";

/// Kind of a control action.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum AuditAction {
    /// A GPU's power limit was set, or was to be set.
    SetPowerLimit,
    /// A manual override of a GPU's power limit was released by request.
    ReleasePowerLimit,
    /// A manual override ended without a request for that; `reason` says why.
    EndOverride,
    /// A GPU's original power limit was restored, with all other settings that wattune or a client had changed.
    RestorePowerLimit,
    /// An external writer set a GPU's power limit, and wattune leaves that limit alone.
    LeaveExternalLimit,
    /// A GPU's persistence mode was changed.
    SetPersistenceMode,
    /// A GPU's clocks were locked.
    LockGpuClocks,
    /// A GPU's clocks were unlocked.
    UnlockGpuClocks,
    /// The clocks of a GPU's memory were locked.
    LockMemoryClocks,
    /// The clocks of a GPU's memory were unlocked.
    UnlockMemoryClocks,
    /// A demand-response event was announced or replaced.
    AnnounceDemandResponse,
    /// A demand-response event was withdrawn.
    WithdrawDemandResponse,
    /// Another rule than before sets the node's cap, or none does.
    ChangeCap,
    /// A job was registered.
    RegisterJob,
    /// A held or suspended job began.
    BeginJob,
    /// A job was suspended.
    SuspendJob,
    /// A job ended; `reason` says why.
    EndJob,
    /// A request was refused because its caller may not do what it asks for; `reason` names the request.
    RefuseAccess,
    /// Records of earlier actions were lost, because they came faster than they could be stored or the database could not
    /// be written; `reason` has the number.
    LoseRecords,
}

/// Outcome of a control action.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum AuditOutcome {
    /// The requested state is in force: a GPU's limit was read back. No driver reports locked clocks; these were
    /// accepted.
    Enforced,
    /// The request was accepted, but another state is in force: the one in `after`.
    NotEnforced,
    /// A rule of wattune refused the request; `reason` has the rule.
    Refused,
    /// The driver, the journal or the database failed; `reason` has the error.
    Failed,
}

/// State that a control action changes. Values that the action does not concern, and unknown ones, are absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct AuditState {
    /// Power limit of the GPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power_limit_w: Option<f64>,
    /// Persistence mode of the GPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub persistence_mode: Option<bool>,
    /// Lowest clock of a lock of the GPU's clocks or of its memory's clocks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock_min_mhz: Option<u32>,
    /// Highest clock of a lock of the GPU's clocks or of its memory's clocks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock_max_mhz: Option<u32>,
    /// Cap on the sum of all GPUs' power limits, or the target of a demand-response event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cap_w: Option<f64>,
    /// Target of a demand-response event, relative to the sum of the GPUs' maximum limits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cap_pct: Option<f64>,
    /// Rule that sets the node's cap.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cap_source: Option<String>,
    /// Time from which a demand-response event's target holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start: Option<DateTime<Utc>>,
    /// Time at which a demand-response event's target ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end: Option<DateTime<Utc>>,
}

/// A control action: who did what to which GPU, job or event, the state before and after, and the outcome.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AuditRecord {
    /// Time at which the outcome was known.
    pub at: DateTime<Utc>,
    /// Actor: the caller of a request, `wattune` for the daemon itself, or `external writer`.
    pub who: String,
    /// Kind of the action.
    pub action: AuditAction,
    /// UUID of the GPU, if the action concerns one.
    #[serde(default)]
    pub gpu: Option<String>,
    /// Id of the job that the action concerns, or whose plan led to it.
    #[serde(default)]
    pub job_id: Option<String>,
    /// Id of the demand-response event, if the action concerns one.
    #[serde(default)]
    pub event: Option<String>,
    /// State before the action, as far as it is known.
    #[serde(default)]
    pub before: Option<AuditState>,
    /// State after the action; the requested state if the action was refused or failed.
    #[serde(default)]
    pub after: Option<AuditState>,
    /// Outcome of the action.
    pub outcome: AuditOutcome,
    /// Error or cause in one sentence; absent if there is nothing to explain.
    #[serde(default)]
    pub reason: Option<String>,
    /// Number of equal actions that followed directly and have no record of their own.
    #[serde(default)]
    pub repeats: u32,
}

impl AuditRecord {
    /// Returns a record of an action that took effect and concerns nothing yet.
    pub fn new(at: DateTime<Utc>, who: impl Into<String>, action: AuditAction) -> Self {
        Self {
            at,
            who: who.into(),
            action,
            gpu: None,
            job_id: None,
            event: None,
            before: None,
            after: None,
            outcome: AuditOutcome::Enforced,
            reason: None,
            repeats: 0,
        }
    }

    /// Returns the record with this outcome and reason.
    #[must_use]
    pub fn with_outcome(self, outcome: AuditOutcome, reason: impl Into<String>) -> Self {
        Self { outcome, reason: Some(reason.into()), ..self }
    }

    /// Returns true if `later` is the same action at a later time.
    pub(super) fn is_repeated_by(&self, later: &Self) -> bool {
        let Self { at: _, repeats: _, who, action, gpu, job_id, event, before, after, outcome, reason } = self;
        (who, action, gpu, job_id, event) == (&later.who, &later.action, &later.gpu, &later.job_id, &later.event)
            && (before, after, outcome, reason) == (&later.before, &later.after, &later.outcome, &later.reason)
    }
}

impl AuditState {
    /// Returns a power limit.
    pub fn power_limit(limit: wattune_core::domain::PowerLimit) -> Self {
        Self { power_limit_w: Some(limit.watts().get()), ..Self::default() }
    }
}
