//! How two forecasts of the same hours are mixed, and how far each is off, judged on the days before.
//!
//! On each past day, from this time of day on, the corrected source and the local forecaster would have been off by
//! eₛ and eₗ (the latter taken 1.2 times, because the local forecaster was fitted to these days). For each stretch of
//! the day ahead the share of the source is
//!
//! ```text
//! w = (Σ eₗ(eₗ − eₛ) + κ) / (Σ (eₗ − eₛ)² + κ)     cut to [0, 1]
//! ```
//!
//! which minimises the squared error of the mixture; κ is one day's worth of Σ (eₗ − eₛ)², so that the source is
//! trusted until there is evidence against it.

use super::trail::DAY;

/// Where one stretch of the day ahead ends and the next begins, in hours ahead.
const STRETCHES: [usize; 5] = [1, 3, 8, 16, DAY];
/// How many days the trust in the source is worth against what was measured.
const TRUST_DAYS: f64 = 1.0;
/// The local forecaster counts as if it had erred by so much more: it was fitted to the days on which it is judged.
const FITTED: f64 = 1.2;
/// What part of past outcomes an interval holds, so that it holds 80 % of those to come: the models were fitted on
/// the past ones.
const COVERAGE: f64 = 0.82;
/// Half the width of the interval that holds this part of a normal distribution, in standard deviations.
pub(super) const NORMAL: f64 = 1.2816;
/// From this many errors on their own distribution is known well enough.
const ENOUGH: usize = 14;
/// How many errors the assumed one is worth where there are fewer.
const ASSUMED_WEIGHT: f64 = 2.0;
/// The standard error assumed before any is known, as a part of the intensity: published day-ahead errors are 3 to
/// 15 % (`carbon-apis.md` §9).
pub(super) const ASSUMED_ERROR: f64 = 0.1;

/// The errors of one forecaster on the day that began each of the past days, by lead.
pub(super) type Errors = Vec<[Option<f64>; DAY]>;

/// Shares and interval widths by stretch of the day ahead.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Stretches([f64; STRETCHES.len()]);

impl Stretches {
    fn of(f: impl Fn(std::ops::Range<usize>) -> f64) -> Self {
        let start = |i: usize| if i == 0 { 0 } else { STRETCHES[i - 1] };
        Self(std::array::from_fn(|i| f(start(i)..STRETCHES[i])))
    }

    /// The value for a lead in hours; the last one goes on beyond the day.
    pub(super) fn at(&self, lead: i64) -> f64 {
        let within = |end: &usize| i64::try_from(*end).is_ok_and(|end| lead < end);
        self.0[STRETCHES.iter().position(within).unwrap_or(STRETCHES.len() - 1)]
    }
}

/// The source's share in the mixture; 1 where nothing is known of one of them.
pub(super) fn shares(source: &Errors, local: &Errors) -> Stretches {
    Stretches::of(|leads| {
        let (mut product, mut squares, mut days) = (0.0, 0.0, 0.0);
        for (s, l) in source.iter().zip(local) {
            let both = || leads.clone().filter_map(|lead| Some((s[lead]?, FITTED * l[lead]?)));
            days += if both().next().is_some() { 1.0 } else { 0.0 };
            for (s, l) in both() {
                product += l * (l - s);
                squares += (l - s) * (l - s);
            }
        }
        if squares <= 0.0 {
            return 1.0;
        }
        let trust = TRUST_DAYS * squares / days;
        ((product + trust) / (squares + trust)).clamp(0.0, 1.0)
    })
}

/// What the mixture would have been off by.
pub(super) fn mixed(source: &Errors, local: &Errors, shares: &Stretches) -> Errors {
    let nothing = [None; DAY];
    let day = |day: usize| -> [Option<f64>; DAY] {
        let (s, l) = (source.get(day).unwrap_or(&nothing), local.get(day).unwrap_or(&nothing));
        std::array::from_fn(|lead| {
            let share = i64::try_from(lead).map_or(1.0, |lead| shares.at(lead));
            match (s[lead], l[lead]) {
                (Some(s), Some(l)) => Some(share * s + (1.0 - share) * l),
                // Where the source had not spoken yet, a mixture with it is not to be judged.
                (None, Some(l)) if source.is_empty() => Some(l),
                (s, _) => s,
            }
        })
    };
    (0..source.len().max(local.len())).map(day).collect()
}

/// Half the width of the 80 % interval for each stretch. `assumed` is the standard error before any is known.
pub(super) fn widths(errors: &Errors, assumed: f64) -> Stretches {
    Stretches::of(|leads| {
        let mut all: Vec<f64> = errors.iter().flat_map(|day| &day[leads.clone()]).flatten().copied().collect();
        width(&mut all, assumed)
    })
}

/// Half the width that holds 80 % of what `errors` tell.
#[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "below 700")]
pub(super) fn width(errors: &mut [f64], assumed: f64) -> f64 {
    let count = errors.len();
    if count < ENOUGH {
        let squares: f64 = errors.iter().map(|e| e * e).sum::<f64>() + ASSUMED_WEIGHT * assumed * assumed;
        return NORMAL * (squares / (count as f64 + ASSUMED_WEIGHT)).sqrt();
    }
    for e in errors.iter_mut() {
        *e = e.abs();
    }
    let rank = ((COVERAGE * (count + 1) as f64).ceil() as usize).clamp(1, count) - 1;
    *errors.select_nth_unstable_by(rank, f64::total_cmp).1
}
