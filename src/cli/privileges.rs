//! Capabilities of the daemon: the few that it needs after its start, and the dropping of all others.
//!
//! Capabilities belong to threads, and a new thread gets those of the thread that starts it. So they are dropped while
//! the process still has one thread.

use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set, remove_capability_from_bounding_set,
    set_capabilities, set_no_new_privs,
};

/// A capability that the daemon keeps, with its purpose.
pub(super) struct Need {
    pub(super) capability: CapabilitySet,
    pub(super) name: &'static str,
    /// The function that is missing without the capability, in words that complete "without it …".
    pub(super) without: &'static str,
}

/// The capabilities that the daemon keeps, as far as it has them. It drops all others once it has opened its
/// addresses and given the socket to a group.
pub(super) const NEEDS: [Need; 3] = [
    Need {
        capability: CapabilitySet::SYS_ADMIN,
        name: "CAP_SYS_ADMIN",
        without: "the driver refuses to set power limits, clocks and persistence mode",
    },
    Need {
        capability: CapabilitySet::DAC_READ_SEARCH,
        name: "CAP_DAC_READ_SEARCH",
        without: "the energy counters of CPUs can be read by their owner (root) only, and the environments of other users' processes not at all",
    },
    Need {
        capability: CapabilitySet::SYS_PTRACE,
        name: "CAP_SYS_PTRACE",
        without: "the environments of other users' processes cannot be read, and tags that come from there are missing",
    },
];

/// Returns the capabilities that are in force for this thread; none if the kernel does not report them.
pub(super) fn effective() -> CapabilitySet {
    capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.effective)
}

fn kept() -> CapabilitySet {
    NEEDS.iter().fold(CapabilitySet::empty(), |all, need| all | need.capability)
}

/// Gives up, for good, the possibility to get other capabilities than [`NEEDS`] by starting a program. The capabilities
/// in force stay.
///
/// # Errors
/// If the kernel does not permit it.
pub(super) fn renounce_others() -> rustix::io::Result<()> {
    set_no_new_privs(true)?;
    clear_ambient_capability_set()?;
    // Only who has this capability may change the bounding set, which concerns started programs.
    if effective().contains(CapabilitySet::SETPCAP) {
        for unneeded in CapabilitySet::all().iter().filter(|one| !kept().contains(*one)) {
            // Older kernels do not know the newest capabilities.
            let _ = remove_capability_from_bounding_set(unneeded);
        }
    }
    Ok(())
}

/// Drops all capabilities of this thread but [`NEEDS`], and of the threads that it starts from now on.
///
/// # Errors
/// If the kernel does not permit it.
pub(super) fn drop_unneeded() -> rustix::io::Result<()> {
    let (permitted, inheritable) = (capabilities(None)?.permitted & kept(), CapabilitySet::empty());
    set_capabilities(None, CapabilitySets { effective: permitted, permitted, inheritable })
}
