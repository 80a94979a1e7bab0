//! Spread of a fleet's starts by a stated rule.
//!
//! Where many jobs know the same forecast, they would all start at the same second. The start of a job with a key is
//! therefore a point of the interval around the best start in which the expected emissions exceed the least ones by at
//! most [`TOLERANCE`]. The key alone fixes the point, at a fraction of the interval that is the first 53 bits of the
//! SHA-256 digest of the key, so that repeated decisions agree while the forecast stays the same.

use chrono::{DateTime, TimeDelta, Utc};
use sha2::{Digest, Sha256};

/// Maximum excess of the expected emissions over the least ones, relative to these.
pub(super) const TOLERANCE: f64 = 0.0025;

/// Returns the fraction in [0, 1) that a key fixes.
#[expect(clippy::cast_precision_loss, reason = "53 bits are exact")]
pub(super) fn fraction(key: &str) -> f64 {
    let digest = Sha256::digest(key.as_bytes());
    let bits = digest.iter().take(8).fold(0_u64, |bits, byte| bits << 8 | u64::from(*byte)) >> 11;
    bits as f64 / (1_u64 << 53) as f64
}

/// Returns the start for a key: a point of the interval around `best` in which `costs` are within the tolerance. The
/// costs are linear between the starts, which are in order and at least one.
pub(super) fn spread(
    key: &str,
    best: usize,
    starts: &[DateTime<Utc>],
    cost: impl Fn(DateTime<Utc>) -> f64,
) -> DateTime<Utc> {
    let limit = cost(starts[best]) * (1.0 + TOLERANCE);
    let crossing = |within: DateTime<Utc>, beyond: DateTime<Utc>| {
        let (inner, outer) = (cost(within), cost(beyond));
        let share = if outer > inner { ((limit - inner) / (outer - inner)).clamp(0.0, 1.0) } else { 1.0 };
        at_share(within, beyond, share)
    };
    let edge = |mut place: usize, towards: &dyn Fn(usize) -> Option<usize>| loop {
        let Some(next) = towards(place).filter(|next| *next < starts.len()) else { return starts[place] };
        if cost(starts[next]) > limit {
            return crossing(starts[place], starts[next]);
        }
        place = next;
    };
    let from = edge(best, &|place| place.checked_sub(1));
    let to = edge(best, &|place| place.checked_add(1));
    at_share(from, to, fraction(key))
}

/// Returns the time at a share of the way from one time to another, to the second.
#[expect(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "within ten years")]
fn at_share(from: DateTime<Utc>, to: DateTime<Utc>, share: f64) -> DateTime<Utc> {
    from + TimeDelta::seconds(((to - from).num_seconds() as f64 * share) as i64)
}
