//! Lengths of the slots of rows that name only their start.

use chrono::{DateTime, TimeDelta, Utc};

/// Maximum length of a slot.
pub(super) const LONGEST_SLOT: TimeDelta = TimeDelta::days(366);

/// Length of a slot if the file has only one row.
const ONLY_SLOT: TimeDelta = TimeDelta::hours(1);

/// Number of distances between rows that count as the neighbourhood of a row, on each side.
const NEIGHBOURS: usize = 3;

/// Returns the length of the slot of each start; `starts` are in time order, each once. A slot lasts until the next
/// start, but no longer than usual in its neighbourhood: a missing row is a gap, not a long slot. The neighbourhood
/// decides, not the whole file, because a file may have hourly rows beside quarter-hourly ones. The length `given` in
/// the settings replaces the usual one.
pub(super) fn lengths(starts: &[DateTime<Utc>], given: Option<TimeDelta>) -> Vec<TimeDelta> {
    let given = given.filter(|length| *length <= LONGEST_SLOT);
    let steps: Vec<TimeDelta> = starts.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let mut lengths: Vec<TimeDelta> = Vec::with_capacity(starts.len());
    for (i, step) in steps.iter().copied().enumerate() {
        let before = median(&steps[i.saturating_sub(NEIGHBOURS)..i]);
        let after = median(&steps[i + 1..steps.len().min(i + 1 + NEIGHBOURS)]);
        let previous = lengths.last().copied();
        // The first row has none before it, so that the next one tells whether a stretch of this length begins.
        let adjacent = previous.or_else(|| steps.get(i + 1).copied());
        let usual = match given {
            Some(given) => [Some(given), None, None],
            None => [before, after, adjacent],
        };
        let fits = |usual: TimeDelta| step <= LONGEST_SLOT && step * 2 <= usual * 3;
        let is_usual = usual.into_iter().flatten().any(fits);
        let is_only = given.is_none() && steps.len() == 1 && step <= LONGEST_SLOT;
        let cut = given.or_else(|| before.max(previous).or(after)).unwrap_or(ONLY_SLOT);
        lengths.push(if is_usual || is_only { step } else { cut });
    }
    if !starts.is_empty() {
        lengths.push(lengths.last().copied().or(given).unwrap_or(ONLY_SLOT));
    }
    lengths
}

/// Returns the middle one of the distances that a slot can have; of two, the shorter one.
fn median(steps: &[TimeDelta]) -> Option<TimeDelta> {
    let mut steps: Vec<TimeDelta> = steps.iter().copied().filter(|step| *step <= LONGEST_SLOT).collect();
    steps.sort_unstable();
    steps.get(steps.len().saturating_sub(1) / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn minutes(starts: &[i64], given: Option<i64>) -> Vec<i64> {
        let starts: Vec<_> = starts.iter().map(|m| DateTime::UNIX_EPOCH + TimeDelta::minutes(*m)).collect();
        lengths(&starts, given.map(TimeDelta::minutes)).iter().map(TimeDelta::num_minutes).collect()
    }

    #[test]
    fn hourly_rows_beside_quarter_hourly_ones_leave_no_gaps() {
        assert_eq!(minutes(&[0, 15, 30, 45, 60, 120, 180], None), [15, 15, 15, 15, 60, 60, 60]);
        assert_eq!(minutes(&[0, 60, 120, 135, 150, 165], None), [60, 60, 15, 15, 15, 15]);
        let quarters = (0..200).map(|i| 15 * i);
        let hours = (0..48).map(|i| 3000 + 60 * i);
        let both: Vec<i64> = quarters.chain(hours).collect();
        let expected: Vec<i64> = [15; 200].into_iter().chain([60; 48]).collect();
        assert_eq!(minutes(&both, None), expected);
    }

    #[test]
    fn a_missing_row_is_a_gap_as_long_as_its_neighbourhood_says() {
        assert_eq!(minutes(&[0, 15, 30, 75, 90, 105], None), [15; 6]);
        assert_eq!(
            minutes(&[0, 15, 30, 45, 60, 120, 180, 300, 360, 420], None),
            [15, 15, 15, 15, 60, 60, 60, 60, 60, 60]
        );
        assert_eq!(minutes(&[0, 15, 30, 45, 405, 465, 525], None), [15, 15, 15, 15, 60, 60, 60], "between stretches");
        assert_eq!(minutes(&[0, 15, 30, 90, 150], Some(15)), [15; 5], "as the settings say");
    }

    #[test]
    fn few_rows_have_the_length_that_is_known() {
        assert_eq!((minutes(&[], None), minutes(&[0], None), minutes(&[0], Some(5))), (vec![], vec![60], vec![5]));
        assert_eq!(minutes(&[0, 30], None), [30, 30]);
        assert_eq!(minutes(&[0, 60, 61, 120, 180], None), [60, 1, 59, 60, 60], "a stray row");
        let far = 367 * 24 * 60;
        assert_eq!((minutes(&[0, far], None), minutes(&[0, far, 2 * far], None)), (vec![60; 2], vec![60; 3]));
    }
}
