//! Offline verification of an exported ledger: every digest, sum and settlement.
//!
//! An export is JSON lines. The intervals of a block, `{"block":…,"row":…,"hash":…,"interval":{…}}`, precede the
//! block's close entry. Entries are `{"seq":…,"hash":…,"entry":{…}}`. The last line,
//! `{"entries":…,"head":…,"rows":…,"tail":…}`, states number and digest of the last entry and of the last interval.
//! Rows (intervals) are numbered from 1 over the whole ledger; deleted (rolled-up) rows keep their numbers. Each line
//! ends with a single line feed.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};

use super::chain::Digest;
use super::entry::{Close, Corrected, Correction, Entry, RollUp, Row, Settlement};
use super::{Share, block, settlement};
use crate::domain::{DeviceId, EnergySource, SignalKind};
use crate::units::Millijoules;

/// Prefixes of the three kinds of lines: entry, interval, last line.
const BEGINNINGS: [&str; 3] = ["{\"seq\":", "{\"block\":", "{\"entries\":"];

/// An inconsistency in an exported ledger, and its place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {why}")]
pub struct Inconsistency {
    /// Line of the export, with the entry or interval on that line.
    pub place: String,
    /// Description of the inconsistency.
    pub why: String,
}

/// Contents of a ledger that passed verification.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifiedLedger {
    /// Number of entries.
    pub entries: u64,
    /// Number of intervals in the export.
    pub intervals: u64,
    /// Number of closed blocks (intervals of about an hour each).
    pub blocks: u64,
    /// Number of blocks (of about an hour each) whose intervals were rolled up.
    pub rolled_up: u64,
    /// Number of settlements (emissions of an hour), counting all versions.
    pub settlements: u64,
    /// Total energy recorded.
    pub energy: Millijoules,
    /// Blocks (intervals of about an hour each) in which the recorded energy of a device differs from the increase of
    /// the device's counter: number of the block, device, and difference in millijoules.
    pub differences: Vec<(u64, DeviceId, i64)>,
    /// Time of the last close of a block (intervals of about an hour); absent without a close. The intervals after the
    /// last close are not covered by an entry yet.
    pub closed_at: Option<DateTime<Utc>>,
    /// Number of intervals after the last close.
    pub open: u64,
    /// Starts of hours whose recorded energy, by closes and corrections, differs from the energy in the hour's newest
    /// settlement (stored emissions) with average intensities.
    pub unsettled: BTreeSet<DateTime<Utc>>,
    /// Number of the entry whose digest was given to [`Verifier::with_known_head`]; absent if none was given, or no
    /// entry has it.
    pub known_head: Option<u64>,
    /// Digest of the last entry. Anybody who keeps this digest can later prove that no entry up to it was changed.
    pub head: Digest,
}

type Sums = BTreeMap<(DeviceId, Share, EnergySource), Millijoules>;

/// Verifier that reads an export line by line.
#[derive(Clone, Default)]
pub struct Verifier {
    line: u64,
    /// Bytes of a line whose end was not read yet.
    begun: Vec<u8>,
    verified: VerifiedLedger,
    /// Intervals of the block whose close was not read yet.
    rows: Vec<super::Interval>,
    last_row: u64,
    details: Digest,
    /// Blocks without intervals for which no roll-up was read yet.
    bare: BTreeSet<u64>,
    hours: BTreeMap<DateTime<Utc>, Sums>,
    /// Energy of an hour in the hour's newest settlement (stored emissions), for hours whose recorded energy changed
    /// afterwards.
    changed: BTreeMap<DateTime<Utc>, Sums>,
    /// Digest, kept by the caller, that one of the entries must have; absent if there is no such requirement.
    known_head: Option<Digest>,
    versions: BTreeMap<(DateTime<Utc>, &'static str), u32>,
    ended: bool,
}

/// Returns an entry's line in an export.
pub fn entry_line(seq: u64, hash: Digest, entry: &str) -> String {
    format!("{{\"seq\":{seq},\"hash\":\"{hash}\",\"entry\":{entry}}}")
}

/// Returns an interval's line in an export.
pub fn row_line(block: u64, row: u64, hash: Digest, interval: &str) -> String {
    format!("{{\"block\":{block},\"row\":{row},\"hash\":\"{hash}\",\"interval\":{interval}}}")
}

/// Returns the last line of an export: the numbers of the last entry and interval, and their digests.
pub fn last_line(entries: u64, head: Digest, rows: u64, tail: Digest) -> String {
    format!("{{\"entries\":{entries},\"head\":\"{head}\",\"rows\":{rows},\"tail\":\"{tail}\"}}")
}

impl Verifier {
    /// Returns a verifier that also requires an entry with the digest `head`, kept from an earlier export; `None`
    /// requires nothing more.
    pub fn with_known_head(head: Option<Digest>) -> Self {
        let verified =
            VerifiedLedger { known_head: (head == Some(Digest::GENESIS)).then_some(0), ..VerifiedLedger::default() };
        Self { known_head: head, verified, ..Self::default() }
    }

    /// Processes the next bytes of an export; they may end in the middle of a line.
    ///
    /// # Errors
    /// Returns the first inconsistency in the lines that the bytes complete, as [`Self::check_line`].
    pub fn feed(&mut self, bytes: &[u8]) -> Result<(), Inconsistency> {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.begun.extend_from_slice(part);
            if self.begun.pop_if(|last| *last == b'\n').is_some() {
                let line = std::mem::take(&mut self.begun);
                self.check_line(&line)?;
            }
        }
        // A file that is not a ledger may have no line feed: reject it at once.
        let longest = BEGINNINGS.iter().map(|beginning| beginning.len()).max().unwrap_or_default();
        let is_known = BEGINNINGS.iter().any(|beginning| self.begun.starts_with(beginning.as_bytes()));
        if self.begun.len() < longest || is_known {
            return Ok(());
        }
        let line = std::mem::take(&mut self.begun);
        self.check_line(&line)
    }

    /// Processes the next line, without its line feed.
    ///
    /// # Errors
    /// Returns an error if the line was changed or does not follow from the lines before.
    pub fn check_line(&mut self, line: &[u8]) -> Result<(), Inconsistency> {
        self.read_line(line).map(drop)
    }

    /// Processes the next line, without its line feed, and returns the line's entry; `None` for an interval and for the
    /// last line.
    pub fn read_line(&mut self, line: &[u8]) -> Result<Option<Entry>, Inconsistency> {
        self.line += 1;
        let Ok(text) = std::str::from_utf8(line) else { return Err(self.inconsistency("", "is not UTF-8 text")) };
        if self.ended {
            return Err(self.inconsistency("", "follows the end"));
        }
        if text.ends_with('\r') {
            return Err(
                self.inconsistency("", "ends with a carriage return: lines of an export end with a line feed alone")
            );
        }
        let [entry, row, end] = BEGINNINGS;
        if let Some(rest) = text.strip_prefix(entry) {
            self.read_entry(text, rest).map(Some)
        } else if let Some(rest) = text.strip_prefix(row) {
            self.read_row(text, rest).map(|()| None)
        } else if let Some(rest) = text.strip_prefix(end) {
            self.read_end(text, rest).map(|()| None)
        } else {
            Err(self.inconsistency("", "is neither an entry nor an interval nor the end"))
        }
    }

    /// Returns the contents of the ledger after the last line.
    ///
    /// # Errors
    /// Returns an error if the last line is missing, if intervals of a block are missing although no roll-up entry says
    /// that they were deleted, or if no entry has the digest given to [`Self::with_known_head`].
    pub fn finish(self) -> Result<VerifiedLedger, Inconsistency> {
        if !self.begun.is_empty() {
            let why = "is incomplete: the export was cut off".to_owned();
            return Err(Inconsistency { place: format!("line {}", self.line + 1), why });
        }
        if !self.ended {
            let why = "the last line is missing: the export was cut off".to_owned();
            return Err(Inconsistency { place: format!("after line {}", self.line), why });
        }
        if let Some(block) = self.bare.first() {
            let why = "its intervals are missing without a roll-up".to_owned();
            return Err(Inconsistency { place: format!("block {block}"), why });
        }
        let mut verified = self.verified;
        if let (Some(head), None) = (self.known_head, verified.known_head) {
            let why = "is not the digest of any entry: entries were changed or removed since it was kept";
            return Err(Inconsistency { place: format!("the digest {head}"), why: why.into() });
        }
        verified.open = self.rows.len() as u64;
        let sums = |of: Option<&Sums>| -> Sums {
            let mut sums = of.cloned().unwrap_or_default();
            sums.retain(|_, energy| *energy > Millijoules::ZERO);
            sums
        };
        let unsettled = self.changed.iter().filter(|(hour, then)| sums(Some(then)) != sums(self.hours.get(hour)));
        verified.unsettled = unsettled.map(|(hour, _)| *hour).collect();
        Ok(verified)
    }

    fn inconsistency(&self, what: &str, why: impl ToString) -> Inconsistency {
        let what = if what.is_empty() { String::new() } else { format!(" ({what})") };
        Inconsistency { place: format!("line {}{what}", self.line), why: why.to_string() }
    }

    fn read_entry(&mut self, text: &str, rest: &str) -> Result<Entry, Inconsistency> {
        let (seq, hash, entry) =
            parts_of(rest, "\"entry\":").ok_or_else(|| self.inconsistency("", "is not a valid entry"))?;
        let name = format!("entry {seq}");
        let expected = self.verified.head.then(entry);
        let written = entry_line(seq, hash, entry);
        if written != text {
            return Err(self.inconsistency(&name, "is not in the canonical form of an entry"));
        }
        if seq != self.verified.entries + 1 {
            return Err(
                self.inconsistency(&name, format!("follows entry {}: an entry is missing", self.verified.entries))
            );
        }
        if hash != expected {
            return Err(self.inconsistency(&name, "its hash does not match: this line or an earlier one was changed"));
        }
        let entry: Entry = serde_json::from_str(entry).map_err(|e| self.inconsistency(&name, e))?;
        if !self.rows.is_empty() && !matches!(entry, Entry::Close(_)) {
            return Err(self.inconsistency(&name, "lies between a block's intervals and its close"));
        }
        let result = match &entry {
            Entry::Close(close) => self.close(close),
            Entry::Settlement(settlement) => self.apply_settlement(settlement),
            Entry::Correction(correction) => self.correct(correction),
            Entry::RollUp(rolled) => self.roll_up(rolled),
            Entry::Terms(_)
            | Entry::Control(_)
            | Entry::Lost(_)
            | Entry::Registered(_)
            | Entry::Ended(_)
            | Entry::Counterfactual(_)
            | Entry::Outcome(_)
            | Entry::StartRequest(_)
            | Entry::Presence(_) => Ok(()),
        };
        result.map_err(|why| self.inconsistency(&name, why))?;
        self.verified.entries = seq;
        self.verified.head = hash;
        if self.known_head == Some(hash) {
            self.verified.known_head = Some(seq);
        }
        if matches!(entry, Entry::Close(_)) {
            self.details = hash;
        }
        Ok(entry)
    }

    fn read_row(&mut self, text: &str, rest: &str) -> Result<(), Inconsistency> {
        let parsed = rest.split_once(",\"row\":").and_then(|(block, rest)| {
            let (row, hash, interval) = parts_of(rest, "\"interval\":")?;
            Some((block.parse::<u64>().ok()?, row, hash, interval))
        });
        let Some((block, row, hash, interval)) = parsed else {
            return Err(self.inconsistency("", "is not a valid interval"));
        };
        let name = format!("row {row} of block {block}");
        if row_line(block, row, hash, interval) != text {
            return Err(self.inconsistency(&name, "is not in the canonical form of an interval"));
        }
        if block != self.verified.blocks + 1 {
            return Err(self.inconsistency(&name, format!("should be in block {}", self.verified.blocks + 1)));
        }
        if row != self.last_row + 1 {
            return Err(self.inconsistency(&name, format!("follows row {}", self.last_row)));
        }
        if hash != self.details.then(interval) {
            return Err(self.inconsistency(&name, "its hash does not match: this line or an earlier one was changed"));
        }
        let parsed: Row = serde_json::from_str(interval).map_err(|e| self.inconsistency(&name, e))?;
        let Some(parsed) = parsed.interval() else { return Err(self.inconsistency(&name, "ends before it begins")) };
        self.verified.energy += parsed.energy;
        self.verified.intervals += 1;
        self.rows.push(parsed);
        self.details = hash;
        self.last_row = row;
        Ok(())
    }

    fn read_end(&mut self, text: &str, rest: &str) -> Result<(), Inconsistency> {
        let entries = rest.split_once(',').and_then(|(n, _)| n.parse().ok());
        let (seen, head, rows) = (self.verified.entries, self.verified.head, self.last_row);
        if entries != Some(seen) || text != last_line(seen, head, rows, self.details) {
            let why = format!("should state {seen} entries up to {head} and {rows} intervals up to {}", self.details);
            return Err(self.inconsistency("the end", why));
        }
        self.ended = true;
        Ok(())
    }

    fn close(&mut self, close: &Close) -> Result<(), String> {
        if close.block != self.verified.blocks + 1 {
            return Err(format!("closes block {}, not {}", close.block, self.verified.blocks + 1));
        }
        let rows = std::mem::take(&mut self.rows);
        if rows.is_empty() && close.rows > 0 {
            self.bare.insert(close.block);
            self.last_row += close.rows;
            self.verified.energy += close.cells.iter().map(|c| c.energy_mj).sum();
        } else {
            if (close.rows, close.details) != (rows.len() as u64, self.details) {
                return Err(format!("states {} intervals, but {} precede it", close.rows, rows.len()));
            }
            if close.cells != block::cells(&rows) {
                return Err("its sums do not match its intervals".into());
            }
        }
        let gained = close.balances.iter().map(|b| (b.device.clone(), b.counter_mj)).collect();
        if close.balances != block::balances(&close.cells, &gained) {
            return Err("its balances do not match its sums".into());
        }
        let off = close.balances.iter().filter(|b| b.difference_mj != 0);
        self.verified.differences.extend(off.map(|b| (close.block, b.device.clone(), b.difference_mj)));
        for cell in &close.cells {
            let key = (cell.device.clone(), cell.share.clone(), cell.source);
            self.change(cell.hour);
            *self.hours.entry(cell.hour).or_default().entry(key).or_default() += cell.energy_mj;
        }
        self.verified.blocks = close.block;
        self.verified.closed_at = Some(close.at);
        Ok(())
    }

    /// Remembers the energy in an hour's newest settlement (stored emissions), before the recorded energy of the hour
    /// first differs from it.
    fn change(&mut self, hour: DateTime<Utc>) {
        let settled = || self.hours.get(&hour).cloned().unwrap_or_default();
        self.changed.entry(hour).or_insert_with(settled);
    }

    fn apply_settlement(&mut self, settled: &Settlement) -> Result<(), String> {
        let version = self.versions.entry((settled.hour, settled.kind.as_str())).or_default();
        if settled.version != *version + 1 {
            return Err(format!("is version {}, after version {version}", settled.version));
        }
        *version = settled.version;
        let mut sums = Sums::new();
        for part in &settled.parts {
            if part.energy_mj.len() != settled.factors.len() {
                return Err("has a part without one energy per factor".into());
            }
            if part.carbon_ug != settlement::carbon(part, &settled.factors) {
                return Err("its emissions are not its energy times its intensities".into());
            }
            let energy = part.energy_mj.iter().copied().sum::<Millijoules>() + part.unknown_mj;
            *sums.entry((part.device.clone(), part.share.clone(), part.source)).or_default() += energy;
        }
        let recorded = self.hours.entry(settled.hour).or_default();
        recorded.retain(|_, energy| *energy > Millijoules::ZERO);
        sums.retain(|_, energy| *energy > Millijoules::ZERO);
        if *recorded != sums {
            return Err("its energy differs from the recorded energy".into());
        }
        if settled.kind == SignalKind::Average {
            self.changed.remove(&settled.hour);
        }
        self.verified.settlements += 1;
        Ok(())
    }

    fn correct(&mut self, correction: &Correction) -> Result<(), String> {
        for Corrected { device, hour, source, energy_mj, row } in &correction.rows {
            self.change(*hour);
            let sums = self.hours.entry(*hour).or_default();
            let from = sums.entry((device.clone(), correction.from.clone(), *source)).or_default();
            let Some(left) = from.checked_since(*energy_mj) else {
                return Err(format!("moves more energy of row {row} than its share has"));
            };
            *from = left;
            *sums.entry((device.clone(), correction.to.clone(), *source)).or_default() += *energy_mj;
        }
        Ok(())
    }

    fn roll_up(&mut self, rolled: &RollUp) -> Result<(), String> {
        if rolled.last_block > self.verified.blocks || rolled.first_block > rolled.last_block {
            return Err(format!("names the invalid blocks {} to {}", rolled.first_block, rolled.last_block));
        }
        for block in rolled.first_block..=rolled.last_block {
            self.bare.remove(&block);
        }
        self.verified.rolled_up += rolled.last_block - rolled.first_block + 1;
        Ok(())
    }
}

/// Parses number, digest and JSON from the rest of a line after the line's prefix; `key` precedes the JSON. Returns
/// `None` if the line has another form.
fn parts_of<'a>(rest: &'a str, key: &str) -> Option<(u64, Digest, &'a str)> {
    let (number, rest) = rest.split_once(",\"hash\":\"")?;
    let (hash, rest) = rest.split_once("\",")?;
    let json = rest.strip_prefix(key)?.strip_suffix('}')?;
    Some((number.parse().ok()?, hash.parse().ok()?, json))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_not_a_ledger_is_rejected_before_its_line_ends() {
        let inconsistency = Verifier::default().feed(&[0; 64]).expect_err("zeros");
        assert_eq!(inconsistency.to_string(), "line 1: is neither an entry nor an interval nor the end");
        let mut verifier = Verifier::default();
        for part in ["{\"s", "eq\":1,\"hash\":\"", "0000000000"] {
            assert_eq!(verifier.feed(part.as_bytes()), Ok(()), "{part}");
        }
        assert_eq!(verifier.finish().expect_err("no end").to_string(), "line 1: is incomplete: the export was cut off");
    }
}
