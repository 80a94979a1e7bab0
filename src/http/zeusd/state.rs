//! The state of Zeus's protocol that its requests share.

use std::time::Duration;

use chrono::{DateTime, Utc};
use tokio_util::sync::CancellationToken;

use super::clients::Watched;
use super::control::Control;
use super::settings::ZeusSettings;
use super::streams::Streams;
use crate::controller::{Caller, Devices, Handle, OverrideEnd, OverrideRequest};
use crate::http::access::Asker;

/// State of Zeus's protocol. Clones share it.
#[derive(Clone)]
pub(in crate::http) struct Zeusd {
    pub(super) settings: ZeusSettings,
    pub(super) devices: Devices,
    pub(super) control: Control,
    pub(super) streams: Streams,
    /// Ends all streams.
    pub(super) stop: CancellationToken,
    handle: Handle,
    watched: Watched,
}

impl Zeusd {
    /// Creates the state. A write may take `timeout`; all streams end with `stop`.
    pub(in crate::http) fn new(
        settings: ZeusSettings,
        devices: Devices,
        handle: Handle,
        timeout: Duration,
        stop: CancellationToken,
    ) -> Self {
        let control = Control::new(handle.clone(), devices.clone(), timeout);
        Self { settings, devices, control, streams: Streams::default(), stop, handle, watched: Watched::default() }
    }

    /// Returns the daemon's present time.
    pub(in crate::http) fn now(&self) -> DateTime<Utc> {
        self.devices.clock().utc()
    }

    /// Returns the identity and rights of a client for a write. Also begins to watch the client's process, whose end
    /// ends the client's override.
    pub(super) fn override_request(&self, asker: &Asker) -> OverrideRequest {
        let end = match asker.process {
            Some(_) if self.settings.keep_after_exit => OverrideEnd::Kept,
            Some(process) => {
                self.watched.watch(process, &self.handle);
                OverrideEnd::WithProcess
            }
            None => OverrideEnd::Unused { after: self.settings.unused_s, since: None },
        };
        OverrideRequest { by: Caller::Zeus(asker.client()), end, over_jobs: self.settings.over_jobs }
    }

    /// Returns the period of a number of readings per second.
    pub(super) fn period(hz: u32) -> Duration {
        Duration::from_secs(1) / hz.max(1)
    }
}
