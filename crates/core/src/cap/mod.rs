//! Allocation of a node's power cap to its GPUs: the limit of each GPU, and whether it may be written now.
//!
//! The cap must hold at every instant (`planning.md` §3), although writes take time and may fail. A lower limit may be
//! written at once. A higher limit may be written only if the sum of the limits in force, those being written and those
//! granted now stays within the cap. Otherwise it waits until lower limits of other GPUs have been read back.

use std::collections::BTreeMap;

use crate::domain::PowerLimit;

/// Purpose of a GPU's limit. If not all limits fit under the cap, limits whose purpose is listed first are lowered
/// first, except [`Fixed`](Self::Fixed) ones, which the cap can't lower.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LimitPurpose {
    /// A limit that wattune does not set, such as an external limit; it counts with the value that the GPU reports.
    Fixed,
    /// The limit of a GPU on which no job is known to train, so that a low limit slows no job.
    Idle,
    /// The limit of a GPU on which a job trains.
    Job {
        /// Priority of the job; the lowest is lowered first.
        priority: i32,
    },
    /// The limit of a job that is being profiled, which takes minutes and precedes planning. Jobs of equal priority are
    /// profiled one after the other, because a profile needs the full range of limits.
    Sweep {
        /// Priority of the job; the lowest is lowered first.
        priority: i32,
        /// Negated time of registration: of jobs with equal priority, the one registered last is lowered first.
        seniority: i64,
    },
    /// The limit of a manual override.
    Manual,
}

/// Request of one GPU for a part of the cap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitRequest {
    /// Limit that may be in force: the larger of the limit that the GPU reports and a limit whose write has not
    /// returned yet.
    pub in_force: PowerLimit,
    /// Limit that the GPU would have without a cap.
    pub wanted: PowerLimit,
    /// Lowest limit that can be set on the GPU.
    pub floor: PowerLimit,
    /// Highest limit that may be requested for this GPU later for the same purpose.
    pub most: PowerLimit,
    /// Purpose of the limit, which decides the order in which limits are lowered.
    pub purpose: LimitPurpose,
    /// True if the last write failed or the GPU reports more than was written, so that the GPU may exceed its grant for
    /// long.
    pub unyielding: bool,
    /// True if no plan, profiling sweep or override sets the limit. Among limits of equal purpose, unplanned ones yield
    /// to the others down to a fair share, which plans leave to them.
    pub unplanned: bool,
}

/// Limit that the allocation grants to a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitGrant {
    /// Limit granted to the GPU.
    pub limit: PowerLimit,
    /// True if the limit may be written now; otherwise limits of other GPUs have to be lowered first.
    pub now: bool,
}

/// Allocates a cap in milliwatts to the requests and returns the grants in the same order. Without a cap, each GPU gets
/// the limit that it requests.
pub fn allocate(requests: &[LimitRequest], cap: Option<u64>) -> Vec<LimitGrant> {
    let Some(cap) = cap else {
        return requests.iter().map(|s| LimitGrant { limit: s.wanted, now: true }).collect();
    };
    let fair = allot(requests, cap, |_| false);
    // A GPU that does not follow its limit is granted the fair limit, but counts with the limit that it reports.
    let resists = |(request, fair): (&LimitRequest, &PowerLimit)| request.unyielding && request.in_force > *fair;
    let resisting: Vec<bool> = requests.iter().zip(&fair).map(resists).collect();
    let careful = allot(requests, cap, |i| resisting[i]);
    let limits = fair.iter().zip(&careful).zip(&resisting).map(|((f, c), r)| if *r { *f } else { *c });
    let limits: Vec<PowerLimit> = limits.collect();

    let mut sum: u64 = requests.iter().map(|s| mw(s.in_force)).sum();
    let mut grants: Vec<LimitGrant> = limits.iter().map(|limit| LimitGrant { limit: *limit, now: true }).collect();
    let mut raises: Vec<usize> = (0..requests.len()).filter(|&i| limits[i] > requests[i].in_force).collect();
    raises.sort_by_key(|&i| std::cmp::Reverse(requests[i].purpose));
    for i in raises {
        let with = sum + mw(limits[i]) - mw(requests[i].in_force);
        grants[i].now = with <= cap;
        sum = if grants[i].now { with } else { sum };
    }
    grants
}

/// Returns limits that fit under the cap, or the lowest limits if none fit. GPUs for which `is_fixed` is true count
/// with the limit in force. Lowered limits are whole watts.
fn allot(requests: &[LimitRequest], cap: u64, is_fixed: impl Fn(usize) -> bool) -> Vec<PowerLimit> {
    let purpose = |i: usize| if is_fixed(i) { LimitPurpose::Fixed } else { requests[i].purpose };
    let mut limits: Vec<PowerLimit> = requests.iter().map(|s| s.wanted).collect();
    let places = 0..requests.len();
    let fixed: u64 =
        places.clone().filter(|&i| purpose(i) == LimitPurpose::Fixed).map(|i| mw(requests[i].in_force)).sum();
    let left = cap.saturating_sub(fixed);
    // GPUs without a job get what remains if all other GPUs request their maximum, so that the limits of the former
    // stay constant while plans and profiling runs (sweeps) change.
    let mut groups: BTreeMap<LimitPurpose, Vec<usize>> = BTreeMap::new();
    for i in places.filter(|&i| purpose(i) != LimitPurpose::Fixed) {
        groups.entry(purpose(i)).or_default().push(i);
    }
    let idle = groups.remove(&LimitPurpose::Idle).unwrap_or_default();
    let most: u64 = groups.values().flatten().map(|&i| mw(requests[i].most.max(requests[i].wanted))).sum();
    reduce(requests, &mut limits, &idle, left.saturating_sub(most));
    let mut left = left.saturating_sub(total(&limits, &idle));
    let floors = |members: &[usize]| members.iter().map(|&i| mw(requests[i].floor)).sum::<u64>();
    let mut floors_below: u64 = groups.values().map(|g| floors(g)).sum();
    // The highest priority gets the limits that it requests, as far as the lowest limits of all others leave room.
    for members in groups.values().rev() {
        floors_below -= floors(members);
        share(requests, &mut limits, members, left.saturating_sub(floors_below));
        left = left.saturating_sub(total(&limits, members));
    }
    limits
}

/// Lowers the limits of the GPUs `members` until their sum fits into `room`: first the unplanned ones, down to what
/// they would keep if all other members requested their maximum.
fn share(requests: &[LimitRequest], limits: &mut [PowerLimit], members: &[usize], room: u64) {
    let (unplanned, others): (Vec<usize>, Vec<usize>) = members.iter().copied().partition(|&i| requests[i].unplanned);
    let mut most = requests.to_vec();
    let mut fair = limits.to_vec();
    for &i in &others {
        most[i].wanted = requests[i].wanted.max(requests[i].most);
        fair[i] = most[i].wanted;
    }
    reduce(&most, &mut fair, members, room);
    reduce(requests, limits, &others, room.saturating_sub(total(&fair, &unplanned)));
    let rest = room.saturating_sub(total(limits, &others));
    reduce(requests, limits, &unplanned, rest);
}

/// Lowers the limits of the GPUs `members` until their sum fits into `room`. Each GPU keeps the same fraction of the
/// difference between its requested and its lowest limit.
fn reduce(requests: &[LimitRequest], limits: &mut [PowerLimit], members: &[usize], room: u64) {
    let wanted = total(limits, members);
    if wanted <= room {
        return;
    }
    let floor: u64 = members.iter().map(|&i| mw(requests[i].floor)).sum();
    let (can_give, may_keep) = (wanted.saturating_sub(floor), room.saturating_sub(floor));
    for &i in members {
        let LimitRequest { floor, wanted, .. } = requests[i];
        let above = mw(wanted).saturating_sub(mw(floor));
        let kept = (u128::from(above) * u128::from(may_keep)).checked_div(u128::from(can_give)).unwrap_or(0);
        let limit = mw(floor) + u64::try_from(kept).unwrap_or(above).min(above);
        let whole = (limit / 1000 * 1000).max(mw(floor));
        limits[i] = PowerLimit::from_milliwatts(u32::try_from(whole).unwrap_or(u32::MAX)).min(wanted.max(floor));
    }
}

fn total(limits: &[PowerLimit], members: &[usize]) -> u64 {
    members.iter().map(|&i| mw(limits[i])).sum()
}

fn mw(limit: PowerLimit) -> u64 {
    u64::from(limit.milliwatts())
}

#[cfg(test)]
mod tests;
