//! The shortest time between two changes of a job's set points.

use crate::domain::Profile;
use crate::units::{Samples, SamplesPerSecond, Seconds};

/// Returns the shortest stay that is asked for, or a tenth of what all of the work takes at the fastest point: a short
/// job's mixture of set points would else be gone.
pub(super) fn shortest_dwell(dwell: Seconds, work: Samples, profile: &Profile) -> Seconds {
    let rates = profile.points.iter().map(|p| p.throughput.mean);
    let fastest = rates.fold(SamplesPerSecond::ZERO, |fastest, rate| fastest.max(rate));
    if fastest > SamplesPerSecond::ZERO { dwell.min(work / fastest * 0.1) } else { dwell }
}
