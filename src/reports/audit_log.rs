//! The audit log as CSV and as a plain-text table.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::csv::no_formula;
use super::table::aligned;
use crate::store::{AuditRecord, AuditState};
use wattune_core::domain::legible;

/// One record of the audit log with its number.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct AuditEntry {
    /// The record's number. Later records have higher numbers.
    pub number: u64,
    /// The record.
    #[serde(flatten)]
    pub record: AuditRecord,
}

const COLUMNS: &str = "number,at,who,action,gpu,job_id,event,before,after,outcome,reason,repeats\n";

/// Returns records of the audit log as CSV under a header line; states are JSON objects.
///
/// # Errors
/// If a record cannot be written.
pub fn audit_csv(entries: Vec<AuditEntry>) -> Result<Vec<u8>, csv::Error> {
    let mut writer = csv::WriterBuilder::new().has_headers(false).from_writer(COLUMNS.as_bytes().to_vec());
    let json = |state: AuditState| serde_json::to_string(&state).unwrap_or_default();
    for AuditEntry { number, record } in entries {
        let AuditRecord { at, who, action, gpu, job_id, event, before, after, outcome, reason, repeats } = record;
        let (who, reason) = (no_formula(who), reason.map(no_formula));
        let (before, after) = (before.map(json), after.map(json));
        writer.serialize((number, at, who, action, gpu, job_id, event, before, after, outcome, reason, repeats))?;
    }
    writer.into_inner().map_err(|e| e.into_error().into())
}

const HEAD: [&str; 8] = ["number", "time", "who", "action", "of", "change", "outcome", "reason"];

/// Returns records of the audit log as a plain-text table.
pub fn audit_table(entries: &[AuditEntry]) -> String {
    let rows: Vec<[String; 8]> = std::iter::once(HEAD.map(str::to_owned)).chain(entries.iter().map(cells)).collect();
    aligned(&rows, |column| column == 0).join("\n") + "\n"
}

fn cells(AuditEntry { number, record }: &AuditEntry) -> [String; 8] {
    let word = |value: serde_json::Value| value.as_str().unwrap_or_default().replace('_', " ");
    let named = |name: &str, id: &Option<String>| id.as_ref().map(|id| format!("{name}{}", legible(id)));
    let of = [named("", &record.gpu), named("job ", &record.job_id), named("event ", &record.event)];
    let mut outcome = word(serde_json::to_value(record.outcome).unwrap_or_default());
    if record.repeats > 0 {
        outcome += &format!(" ({} times)", u64::from(record.repeats) + 1);
    }
    [
        number.to_string(),
        record.at.format("%F %TZ").to_string(),
        legible(&record.who),
        word(serde_json::to_value(record.action).unwrap_or_default()),
        of.into_iter().flatten().collect::<Vec<_>>().join(", "),
        change(record.before.as_ref(), record.after.as_ref()),
        outcome,
        record.reason.as_deref().map(legible).unwrap_or_default(),
    ]
}

fn change(before: Option<&AuditState>, after: Option<&AuditState>) -> String {
    match (before.map(describe), after.map(describe)) {
        (Some(before), Some(after)) => format!("{before} → {after}"),
        (Some(before), None) => format!("{before} → –"),
        (None, Some(after)) => format!("→ {after}"),
        (None, None) => String::new(),
    }
}

/// Describes a state in a few words.
fn describe(state: &AuditState) -> String {
    let AuditState {
        power_limit_w,
        persistence_mode,
        clock_min_mhz,
        clock_max_mhz,
        cap_w,
        cap_pct,
        cap_source,
        start,
        end,
    } = state;
    let time = |at: &DateTime<Utc>| at.format("%F %RZ").to_string();
    let clocks = match (clock_min_mhz, clock_max_mhz) {
        (Some(min), Some(max)) => Some(format!("{min}-{max} MHz")),
        (None, Some(max)) => Some(format!("up to {max} MHz")),
        (Some(min), None) => Some(format!("from {min} MHz")),
        (None, None) => None,
    };
    let parts = [
        power_limit_w.map(|watts| format!("{watts} W")),
        persistence_mode.map(|on| format!("persistence {}", if on { "on" } else { "off" })),
        clocks,
        cap_w.map(|watts| format!("cap {watts} W")),
        cap_pct.map(|share| format!("cap {share} %")),
        cap_source.as_deref().map(|source| format!("({})", legible(source))),
        start.as_ref().map(|at| format!("from {}", time(at))),
        end.as_ref().map(|at| format!("until {}", time(at))),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{AuditAction, AuditOutcome};

    fn entries() -> Vec<AuditEntry> {
        let at = "2026-12-01T17:00:00.4Z".parse().expect("a time");
        let watts = |watts| AuditState { power_limit_w: Some(watts), ..AuditState::default() };
        let set = AuditRecord {
            gpu: Some("GPU-3f".into()),
            before: Some(watts(300.0)),
            after: Some(watts(225.5)),
            repeats: 2,
            ..AuditRecord::new(at, "user 1000", AuditAction::SetPowerLimit)
        };
        let clocks = AuditState { clock_max_mhz: Some(1200), ..AuditState::default() };
        let lock = AuditRecord {
            job_id: Some("resnet50-1".into()),
            after: Some(clocks),
            ..AuditRecord::new(at, "token of \"=a\u{202e}\"", AuditAction::LockGpuClocks)
        };
        let cap = AuditState { cap_w: Some(500.0), cap_source: Some("event dr-1".into()), ..AuditState::default() };
        let cap = AuditRecord { before: Some(cap), ..AuditRecord::new(at, "wattune", AuditAction::ChangeCap) };
        let records = [set, lock.with_outcome(AuditOutcome::NotEnforced, "=1+1"), cap];
        records.into_iter().zip(7..).map(|(record, number)| AuditEntry { number, record }).collect()
    }

    #[test]
    fn the_table_says_who_changed_what() {
        let expected = "\
number  time                  who             action           of              change                      outcome             reason
     7  2026-12-01 17:00:00Z  user 1000       set power limit  GPU-3f          300 W → 225.5 W             enforced (3 times)
     8  2026-12-01 17:00:00Z  token of \"=a\u{fffd}\"  lock gpu clocks  job resnet50-1  → up to 1200 MHz            not enforced        =1+1
     9  2026-12-01 17:00:00Z  wattune         change cap                       cap 500 W (event dr-1) → –  enforced
";
        assert_eq!(audit_table(&entries()), expected);
        assert_eq!(audit_table(&[]).lines().count(), 1);
    }

    #[test]
    fn no_text_of_a_client_is_a_formula_in_the_csv() {
        let csv = String::from_utf8(audit_csv(entries()).expect("written")).expect("UTF-8");
        let lines: Vec<&str> = csv.lines().collect();
        assert_eq!((lines.len(), lines[0]), (4, COLUMNS.trim_end()));
        assert!(lines[2].contains(",not_enforced,'=1+1,0"), "{csv}");
        assert!(lines[1].contains(r#""{""power_limit_w"":300.0}""#), "{csv}");
    }

    #[test]
    fn what_the_api_sends_is_read_back() {
        let sent = serde_json::to_value(entries()).expect("JSON");
        let read: Vec<AuditEntry> = serde_json::from_value(sent.clone()).expect("entries");
        assert_eq!(serde_json::to_value(read).expect("JSON"), sent);
    }
}
