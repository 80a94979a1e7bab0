//! Parts of a report's span: whole days, the hours at its edges, and the times of one accounting boundary each.

use chrono::TimeDelta;

use crate::domain::Slot;
use crate::ledger::apportion::{day_of, hour_of};
use crate::ledger::entry::{Boundary, Terms};

/// Returns the whole UTC days of a span.
pub fn whole_days(span: &Slot) -> Option<Slot> {
    Slot::new(day_of(span.start() - TimeDelta::microseconds(1)) + TimeDelta::days(1), day_of(span.end()))
}

/// Returns the parts of a span outside its whole days.
pub fn edges(span: &Slot) -> Vec<Slot> {
    match whole_days(span) {
        Some(days) => {
            Slot::new(span.start(), days.start()).into_iter().chain(Slot::new(days.end(), span.end())).collect()
        }
        None => vec![*span],
    }
}

/// Returns the terms in force in a span, oldest first. If the span ends before the first terms, the first terms are
/// returned.
pub fn in_force(all: impl IntoIterator<Item = Terms>, span: &Slot) -> Vec<Terms> {
    let mut found: Vec<Terms> = Vec::new();
    for terms in all {
        if terms.at >= span.end() && !found.is_empty() {
            break;
        }
        if terms.at <= span.start() {
            found.clear();
        }
        found.push(terms);
    }
    found
}

/// Divides a span at the full hours at which the accounting boundary changes: the hour of a change keeps its earlier
/// boundary. Energy from before the first terms belongs to their boundary.
pub fn by_boundary(terms: &[Terms], span: &Slot) -> Vec<(Slot, Boundary)> {
    let mut found: Vec<(Slot, Boundary)> = Vec::new();
    let mut from = span.start();
    let mut present = terms.first().map(|t| t.boundary.clone()).unwrap_or_default();
    for next in terms.iter().skip(1).filter(|t| t.at > span.start()) {
        if next.boundary == present {
            continue;
        }
        let cut = hour_of(next.at + TimeDelta::hours(1) - TimeDelta::microseconds(1));
        if let Some(part) = Slot::new(from, cut) {
            found.push((part, present));
            from = cut;
        }
        present = next.boundary.clone();
    }
    found.extend(Slot::new(from, span.end()).map(|part| (part, present)));
    found
}
