//! Restoring original limits at the daemon's end, as far as the node's cap allows.

use std::collections::BTreeMap;
use std::thread;

use crate::gpu::Observation;
use crate::gpu::handle::GpuHandle;
use crate::gpu::journal::{Journal, ObservedLimit, RestoreAction, restore_action};
use crate::gpu::restore::{Restored, absent, restore_all, restore_only};
use wattune_core::cap::{LimitGrant, LimitPurpose, LimitRequest, allocate};
use wattune_core::domain::{GpuId, PowerLimit};
use wattune_core::units::Seconds;

/// Number of rounds of restoring: once GPUs are lowered to their original limits, others may fit under the cap.
const ROUNDS: usize = 2;

/// Restores the original limit of every GPU in the journal, but only so far that the limits of all GPUs add up to at
/// most `cap`, in milliwatts; without a cap, restores all in full. The journal keeps the limits that are not restored.
/// Blocks the calling thread: not for async tasks.
pub(crate) fn restore_within(
    journal: &mut Journal,
    handles: &[GpuHandle],
    timeout: Seconds,
    cap: Option<u64>,
) -> Vec<(GpuId, Restored)> {
    let Some(cap) = cap else { return restore_all(journal, handles, timeout) };
    let mut outcomes: BTreeMap<GpuId, Restored> = BTreeMap::new();
    for _ in 0..ROUNDS {
        let open: Vec<&GpuHandle> = handles.iter().filter(|h| !outcomes.contains_key(&h.identity().id)).collect();
        if open.iter().all(|h| journal.entry(&h.identity().id).is_none()) {
            break;
        }
        let observations = read_all(handles, timeout);
        let requests: Vec<Option<LimitRequest>> =
            handles.iter().zip(&observations).map(|(h, observed)| request(h, observed, journal)).collect();
        let grants = allocate(&requests.iter().flatten().copied().collect::<Vec<_>>(), Some(cap));
        let mut grants = grants.into_iter();
        let mut now = Vec::new();
        for (handle, request) in handles.iter().zip(&requests) {
            let Some((request, grant)) = request.as_ref().zip(request.and_then(|_| grants.next())) else { continue };
            let id = &handle.identity().id;
            if outcomes.contains_key(id) || journal.entry(id).is_none() || !grant.now {
                continue;
            }
            now.push((handle.clone(), part(request, &grant)));
        }
        outcomes.extend(restore_only(journal, &now, timeout));
    }
    // The cap does not limit clocks: they are unlocked even where the limit cannot be restored.
    let locked = handles.iter().filter(|h| !outcomes.contains_key(&h.identity().id)).filter_map(|h| {
        let entry = journal.entry(&h.identity().id)?;
        let limit = h.observe().reading.requested?;
        let boot = journal.boot_id();
        (entry.holds_lock(boot) || entry.holds_memory_lock(boot)).then(|| (h.clone(), Some(limit)))
    });
    let locked: Vec<_> = locked.collect();
    outcomes.extend(restore_only(journal, &locked, timeout));
    let originals: Vec<(GpuId, PowerLimit)> = journal.entries().map(|(id, e)| (id.clone(), e.original)).collect();
    for handle in handles {
        let id = &handle.identity().id;
        let Some((_, original)) = originals.iter().find(|(gpu, _)| gpu == id) else { continue };
        let limit = handle.observe().reading.requested;
        outcomes.entry(id.clone()).or_insert_with(|| match limit {
            Some(limit) => Restored::HeldByCap { limit, original: *original },
            None => Restored::Failed { original: *original, shown: None, why: "the GPU does not answer".into() },
        });
    }
    outcomes.extend(absent(journal, handles));
    outcomes.into_iter().collect()
}

/// Returns the granted limit if it is below the original one; `None` if the GPU is restored in full.
fn part(request: &LimitRequest, grant: &LimitGrant) -> Option<PowerLimit> {
    (grant.limit < request.wanted).then_some(grant.limit)
}

/// Reads all GPUs at the same time, each after its pending writes.
fn read_all(handles: &[GpuHandle], timeout: Seconds) -> Vec<Observation> {
    thread::scope(|scope| {
        let read = |handle: &GpuHandle| handle.read_and_wait(timeout).unwrap_or_else(|_| handle.observe());
        let reading: Vec<_> = handles.iter().map(|handle| (handle, scope.spawn(move || read(handle)))).collect();
        reading.into_iter().map(|(handle, observed)| observed.join().unwrap_or_else(|_| handle.observe())).collect()
    })
}

/// Returns a GPU's request for a part of the cap when the daemon ends: its original limit, or the limit in force if
/// wattune has none to restore. `None` if neither the GPU's limit nor its range is known.
fn request(handle: &GpuHandle, observed: &Observation, journal: &Journal) -> Option<LimitRequest> {
    let range = handle.capabilities().limits.as_ref().ok().copied();
    let in_force = observed.reading.requested.max(observed.reading.enforced).or(range.map(|r| r.max))?;
    let fixed = LimitRequest {
        in_force,
        wanted: in_force,
        floor: in_force,
        most: in_force,
        purpose: LimitPurpose::Fixed,
        unyielding: false,
        unplanned: false,
    };
    let (Some(entry), Some(range)) = (journal.entry(&handle.identity().id), range) else { return Some(fixed) };
    let observed = ObservedLimit {
        current: in_force,
        default: Some(range.default),
        counter: observed.counter,
        restarted: observed.restarts() > 0,
    };
    match restore_action(entry, journal.boot_id(), &observed) {
        RestoreAction::LeaveExternal(_) => Some(fixed),
        RestoreAction::AlreadyRestored | RestoreAction::Write(_) => {
            // When the daemon ends, no GPU is lowered in favour of another; GPUs only share the power that is free.
            let floor = in_force.min(entry.original);
            Some(LimitRequest {
                wanted: entry.original,
                most: entry.original,
                floor,
                purpose: LimitPurpose::Idle,
                ..fixed
            })
        }
    }
}
