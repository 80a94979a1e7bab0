//! Whose limit stands on a GPU, and what has to be done about it (pure).

use super::Entry;
use wattune_core::domain::PowerLimit;
use wattune_core::units::Millijoules;

/// What has to be done to give a board its found limit back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WayBack {
    /// It has it already.
    AlreadyThere,
    /// Write it.
    Write(PowerLimit),
    /// Somebody else has set the board since: it is theirs.
    Theirs(PowerLimit),
}

/// What a board says that decides whose its limit is.
#[derive(Clone, Copy, Debug)]
pub struct Standing {
    /// The limit it has.
    pub current: PowerLimit,
    /// The driver's default.
    pub default: Option<PowerLimit>,
    /// Its energy counter.
    pub counter: Option<Millijoules>,
    /// Whether this process saw the board or its driver start anew since wattune's last write.
    pub restarted: bool,
}

/// Decides from the journal's entry and what the board says now.
///
/// A limit that wattune wrote is taken back. So is the driver's default after a reboot or a driver reload: that is
/// nobody's wish. Any other limit was set by somebody else.
pub fn way_back(entry: &Entry, boot_id: &str, board: &Standing) -> WayBack {
    let current = board.current;
    if current.same_as(entry.found) {
        return WayBack::AlreadyThere;
    }
    if entry.written.iter().any(|w| w.same_as(current)) {
        return WayBack::Write(entry.found);
    }
    let counted_anew = matches!((entry.counter, board.counter), (Some(then), Some(now)) if now < then);
    let restarted = board.restarted || entry.boot_id != boot_id || counted_anew;
    if restarted && board.default.is_some_and(|d| d.same_as(current)) {
        return WayBack::Write(entry.found);
    }
    WayBack::Theirs(current)
}
