//! Calls the driver for single values, and tracks refused and failed calls.

use nvml_wrapper::Device;
use nvml_wrapper::error::NvmlError;

use super::error::{gpu_error, is_gpu_lost};
use super::refusals::Refusals;
use crate::gpu::{Depth, GpuError};
use wattune_core::time::Monotonic;

/// The value that a call returned, or the reason why the GPU has none.
pub(super) type Answer<T> = Result<T, GpuError>;

/// Returns the value, or the reason why `call` gave none. The outer error means that the GPU is gone.
pub(super) fn unless_gpu_lost<T>(call: &'static str, result: Result<T, NvmlError>) -> Result<Answer<T>, GpuError> {
    match result {
        Ok(value) => Ok(Ok(value)),
        Err(error) if is_gpu_lost(&error) => Err(gpu_error(call, error)),
        Err(error) => Ok(Err(gpu_error(call, error))),
    }
}

/// The driver calls of one reading. If a call fails, only its own value is missing, unless the GPU is gone.
pub(super) struct Query<'a> {
    device: &'a Device<'static>,
    refusals: &'a mut Refusals,
    depth: Depth,
    now: Monotonic,
    answered: bool,
    failure: Option<GpuError>,
}

impl<'a> Query<'a> {
    pub(super) fn new(device: &'a Device<'static>, refusals: &'a mut Refusals, depth: Depth, now: Monotonic) -> Self {
        Self { device, refusals, depth, now, answered: false, failure: None }
    }

    /// Returns the last refusal of `call` if its retry is not due yet.
    fn refusal(&self, call: &str) -> Option<&GpuError> {
        self.refusals
            .pending(call, self.now)
            .filter(|_| ![Depth::Requested, Depth::Limits, Depth::Retry].contains(&self.depth))
    }

    pub(super) fn ask<T>(
        &mut self,
        call: &'static str,
        get: impl FnOnce(&Device<'static>) -> Result<T, NvmlError>,
    ) -> Result<Answer<T>, GpuError> {
        if let Some(refused) = self.refusal(call) {
            return Ok(Err(refused.clone()));
        }
        let answer = unless_gpu_lost(call, get(self.device))?;
        match &answer {
            Ok(_) => {
                self.answered = true;
                self.refusals.clear(call);
            }
            Err(error) if error.is_unsupported() => self.refusals.record(error.clone(), self.now),
            Err(error) => self.failure = Some(error.clone()),
        }
        Ok(answer)
    }

    /// Reads a property again if it is missing and its retry is due.
    pub(super) fn renew<T>(
        &mut self,
        cached: &mut Answer<T>,
        get: impl FnOnce(&Device<'_>) -> Result<Answer<T>, GpuError>,
    ) -> Result<(), GpuError> {
        let Err(error) = &*cached else { return Ok(()) };
        if self.refusal(error.call()).is_some() {
            return Ok(());
        }
        *cached = get(self.device)?;
        // Here every failure delays the retry, not only an unsupported call as in `ask`: a property that was missing at
        // the start may stay missing for any reason.
        if let Err(error) = &*cached {
            self.refusals.record(error.clone(), self.now);
        }
        Ok(())
    }

    /// Returns an error if every call failed and the GPU does not even report its UUID, as with an invalid handle.
    pub(super) fn end(self) -> Result<(), GpuError> {
        match self.failure {
            Some(failure) if !self.answered && self.device.uuid().is_err() => Err(failure),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::call;
    use super::*;

    #[test]
    fn only_a_lost_gpu_ends_the_query() {
        assert_eq!(unless_gpu_lost(call::POWER, Ok(1)), Ok(Ok(1)));
        assert_eq!(
            unless_gpu_lost::<u32>(call::POWER, Err(NvmlError::NotSupported)),
            Ok(Err(GpuError::NotSupported { call: call::POWER }))
        );
        assert_eq!(
            unless_gpu_lost::<u32>(call::POWER, Err(NvmlError::GpuLost)),
            Err(GpuError::Lost { call: call::POWER })
        );
        assert!(unless_gpu_lost::<u32>(call::POWER, Err(NvmlError::Uninitialized)).is_err());
    }
}
