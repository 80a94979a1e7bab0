//! A smaller case that fails too.

use super::case::{Case, Timed};

/// What is left to try, from large parts to single steps: each candidate leaves out one part of the steps.
pub(crate) fn without_parts(case: &Case, parts: usize) -> Vec<Case> {
    let size = case.steps.len().div_ceil(parts.max(1)).max(1);
    let without = |from: usize| {
        let keep = |(place, step): (usize, &Timed)| (!(from..from + size).contains(&place)).then(|| step.clone());
        Case { steps: case.steps.iter().enumerate().filter_map(keep).collect(), ..case.clone() }
    };
    (0..case.steps.len()).step_by(size).map(without).collect()
}

/// Leaves out part after part for as long as `fails` holds of what is left, at most `most` times.
pub(crate) fn smallest(mut case: Case, most: usize, mut fails: impl FnMut(&Case) -> bool) -> Case {
    let (mut parts, mut tried) = (2, 0);
    while tried < most {
        let mut found = None;
        for candidate in without_parts(&case, parts) {
            if tried == most {
                return case;
            }
            tried += 1;
            if fails(&candidate) {
                found = Some(candidate);
                break;
            }
        }
        match found {
            Some(smaller) => case = smaller,
            None if parts >= case.steps.len() => return case,
            None => parts *= 2,
        }
    }
    case
}
