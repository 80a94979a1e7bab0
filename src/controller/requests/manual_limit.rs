//! Requests to override a GPU's limit manually, and to release the override.

use std::time::Duration;

use crate::controller::gpus::{Gpu, GpuRef, Override, OverrideEnd, WriteRequest};
use crate::controller::planning::ReplanReason;
use crate::controller::requests::Caller;
use crate::controller::requests::audit::with_error;
use crate::controller::requests::audit_values::deferred;
use crate::controller::view::GpuView;
use crate::controller::{ControlError, Controller};
use crate::store::{AuditAction, AuditOutcome, AuditRecord, AuditState};
use wattune_core::domain::{GpuId, InvalidJob, PowerLimit};
use wattune_core::units::{Seconds, Short, Watts};

/// Valid durations of overrides, in seconds: up to a week.
const OVERRIDE_RANGE_S: std::ops::RangeInclusive<f64> = 1.0..=7.0 * 86_400.0;

impl Controller {
    /// Overrides a GPU's limit for the duration `ttl`. The override takes precedence over the plan of the job on the
    /// GPU.
    ///
    /// # Errors
    /// In observe mode, for GPUs whose limit cannot be set, for a `ttl` out of range, and for limits outside the range
    /// from the GPU's minimum to its maximum usable limit; or if the journal cannot be written or the driver refuses
    /// the limit.
    pub async fn set_override(
        &mut self,
        which: &GpuRef,
        limit: Watts,
        ttl: Seconds,
        by: Caller,
    ) -> Result<GpuView, ControlError> {
        let id = self.gpus.resolve(which)?;
        let before = self.gpus.get(&id).and_then(|gpu| gpu.observed.reading.requested);
        let (mut is_written, requested) = (false, PowerLimit::from_watts(limit));
        let done = self.try_override(which, &id, limit, ttl, &by, &mut is_written).await;
        // A write has a record of its own, as soon as its result is known.
        if !is_written {
            let record = AuditRecord {
                gpu: Some(id.to_string()),
                before: before.map(AuditState::power_limit),
                after: Some(AuditState::power_limit(requested)),
                ..self.new_record(&by, AuditAction::SetPowerLimit)
            };
            let shown = self.gpus.get(&id).and_then(|gpu| gpu.observed.reading.requested);
            let record = if done.is_err() || shown.is_some_and(|shown| shown.same_as(requested)) {
                record
            } else {
                AuditRecord {
                    after: shown.map(AuditState::power_limit),
                    ..record.with_outcome(AuditOutcome::NotEnforced, deferred(requested, requested))
                }
            };
            self.audit(with_error(record, done.as_ref().map(drop)));
        }
        done
    }

    /// Does the work of [`Self::set_override`]. Sets `is_written` if the limit was written to the GPU.
    async fn try_override(
        &mut self,
        which: &GpuRef,
        id: &GpuId,
        limit: Watts,
        ttl: Seconds,
        by: &Caller,
        is_written: &mut bool,
    ) -> Result<GpuView, ControlError> {
        let now = self.now();
        if self.settings.observe {
            let why = "this daemon observes only (observe = true, or --observe); it sets no limit".to_owned();
            return Err(ControlError::Forbidden(why));
        }
        if !OVERRIDE_RANGE_S.contains(&ttl.get()) {
            let why = format!("is {}; it must be from 1 to 604800 seconds", Short(ttl.get()));
            return Err(ControlError::Invalid(InvalidJob { field: "ttl_s", why }));
        }
        let ceiling = self.gpus.ceiling(id);
        let Some(gpu) = self.gpus.get_mut(id) else {
            return Err(ControlError::not_found("GPU", which, String::new()));
        };
        gpu.denied = None;
        // An override ends the external writer's precedence on the GPU.
        let external = gpu.external.take();
        let requested = match allowed(gpu, ceiling, limit) {
            Ok(requested) => requested,
            Err(refused) => {
                gpu.external = external;
                return Err(refused);
            }
        };
        let end = OverrideEnd::At { until: now.monotonic.after(ttl), until_utc: now.utc + ttl.to_delta() };
        let manual = Override {
            limit: requested,
            end,
            by: by.clone(),
            yields_to_jobs: false,
            locks_clocks: false,
            locks_memory: false,
        };
        let before = gpu.manual.replace(manual);
        tracing::info!(gpu.uuid = %id, power.limit_w = limit.get(), caller = %by, "GPU {id}: manual override of {requested} for {ttl}");
        self.jobs.replan_all(ReplanReason::OverrideBegan);
        self.plan().await;
        // While an earlier write is in flight, the result of the override's write would be unknown.
        self.await_write(id).await;
        if let Some(gpu) = self.gpus.get_mut(id) {
            gpu.write_for(WriteRequest { by: by.clone(), limit: Some(requested) });
        }
        self.act();
        if let Some(gpu) = self.gpus.get_mut(id) {
            *is_written = gpu.has_written_for();
            if let Some(why) = gpu.unjournalled.take() {
                (gpu.manual, gpu.external) = (before, external);
                return Err(ControlError::Journal(why));
            }
        }
        self.await_write(id).await;
        let refused = self.gpus.get_mut(id).and_then(|gpu| {
            let why = gpu.denied.as_ref()?.to_string();
            (gpu.manual, gpu.external) = (before, external);
            Some(why)
        });
        match refused {
            Some(why) => Err(ControlError::Forbidden(why)),
            None => self.snapshot().gpu(which),
        }
    }

    /// Releases a manual override. Also lets wattune control the GPU again after an external limit or a denied write.
    ///
    /// # Errors
    /// If there is no such GPU. A GPU without an override is no error.
    pub async fn release_override(&mut self, which: &GpuRef, by: Caller) -> Result<GpuView, ControlError> {
        let id = self.gpus.resolve(which)?;
        tracing::info!(gpu.uuid = %id, caller = %by, "GPU {id}: manual override released");
        let released = self.gpus.get_mut(&id).and_then(|gpu| {
            gpu.external = None;
            gpu.denied = None;
            gpu.release_override()
        });
        self.audit(AuditRecord {
            gpu: Some(id.to_string()),
            before: released.as_ref().map(|manual| AuditState::power_limit(manual.limit)),
            reason: released.map(|manual| format!("override of {}", manual.by)),
            ..self.new_record(&by, AuditAction::ReleasePowerLimit)
        });
        self.jobs.replan_all(ReplanReason::OverrideEnded);
        self.plan().await;
        self.act();
        self.snapshot().gpu(which)
    }

    /// Waits shortly for the write in flight to a GPU, so that the response to the request states the write's result.
    async fn await_write(&mut self, id: &GpuId) {
        for _ in 0..30 {
            let Some(gpu) = self.gpus.get_mut(id) else { return };
            gpu.observe();
            if !gpu.is_writing() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// Returns `limit` if the GPU may be set to it, else the error. `ceiling` is the GPU's maximum usable limit, `None` if
/// it is unknown.
fn allowed(gpu: &Gpu, ceiling: Option<PowerLimit>, limit: Watts) -> Result<PowerLimit, ControlError> {
    if let Some(why) = gpu.why_no_control() {
        return Err(ControlError::Forbidden(why));
    }
    let (Some(range), Some(ceiling)) = (gpu.range(), ceiling) else {
        return Err(ControlError::Forbidden(
            "the GPU does not report the range of its limits, so wattune sets none".into(),
        ));
    };
    let requested = PowerLimit::from_watts(limit);
    if requested < range.min || requested > ceiling {
        let original = if ceiling < range.max { " (its original limit; wattune never goes above it)" } else { "" };
        let why = format!("is {} W; this GPU accepts {} to {ceiling}{original}", Short(limit.get()), range.min);
        return Err(ControlError::Invalid(InvalidJob { field: "power_limit_w", why }));
    }
    Ok(requested)
}
