//! A limit that is not as it is wanted.

use crate::gpu::GpuError;
use wattune_core::domain::PowerLimit;
use wattune_core::time::Now;

/// A limit that is wanted and not there.
#[derive(Clone, Debug)]
pub(in crate::controller) struct Astray {
    pub(super) since: Now,
    /// How many ticks have found it so: between two ticks of a fast clock much time passes.
    pub(super) looks: u32,
    pub(super) wanted: PowerLimit,
    pub(super) shown: PowerLimit,
    /// Why the last write failed; none if the driver accepted it.
    pub(super) error: Option<GpuError>,
}
