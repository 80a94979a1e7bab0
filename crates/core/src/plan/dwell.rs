//! Minimum time between two changes of a job's set points.

use crate::domain::Profile;
use crate::units::{Samples, SamplesPerSecond, Seconds};

/// Returns the requested dwell, or a tenth of the work's duration at the fastest point if that is shorter, so that
/// short jobs can still mix set points.
pub(super) fn shortest_dwell(dwell: Seconds, work: Samples, profile: &Profile) -> Seconds {
    let rates = profile.points.iter().map(|p| p.throughput.mean);
    let fastest = rates.fold(SamplesPerSecond::ZERO, |fastest, rate| fastest.max(rate));
    if fastest > SamplesPerSecond::ZERO { dwell.min(work / fastest * 0.1) } else { dwell }
}
