//! Times for which jobs had GPUs; the embodied emissions of the GPUs are divided in proportion to these times.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, TimeDelta, Utc};

use super::job::JobFacts;
use crate::domain::{DeviceId, Slot};
use crate::ledger::apportion::day_of;
use crate::units::Seconds;

/// Time for which one job, or no job, had a GPU within one UTC day.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct HoldingTime<'a> {
    pub(super) device: &'a DeviceId,
    /// Job on the GPU; absent for time without a job.
    pub(super) job: Option<&'a JobFacts>,
    pub(super) day: DateTime<Utc>,
    pub(super) time: Seconds,
}

/// Returns the times for which each GPU had a job, or had none, within `span`. `gpus` holds the time in which each GPU
/// was in the node; other time does not count. If several jobs are on a GPU, the time is divided evenly between them, so
/// that the times of a GPU add up to its time in the node within the span.
pub(super) fn holding_times<'a>(
    jobs: &'a [JobFacts],
    gpus: &'a BTreeMap<DeviceId, Slot>,
    span: &Slot,
) -> Vec<HoldingTime<'a>> {
    let mut holders: BTreeMap<&DeviceId, Vec<(Slot, &JobFacts)>> = gpus.keys().map(|b| (b, Vec::new())).collect();
    for job in jobs {
        let present = job.present_within(span);
        for gpu in &job.gpus {
            if let Some(of_gpu) = holders.get_mut(&DeviceId::from(gpu)) {
                of_gpu.extend(present.iter().map(|held| (*held, job)));
            }
        }
    }
    let mut found = Vec::new();
    for (device, mut of_gpu) in holders {
        let Some(span) = gpus.get(device).and_then(|there| there.intersection(span)) else { continue };
        of_gpu.retain(|(slot, _)| slot.intersection(&span).is_some());
        of_gpu.sort_by_key(|(slot, _)| *slot);
        let ends = of_gpu.iter().flat_map(|(slot, _)| [slot.start(), slot.end()]);
        let days = std::iter::successors(Some(day_of(span.start())), |day| Some(*day + TimeDelta::days(1)));
        let cuts: BTreeSet<DateTime<Utc>> =
            ends.chain([span.start(), span.end()]).chain(days.skip(1).take_while(|day| *day < span.end())).collect();
        let cuts: Vec<DateTime<Utc>> = cuts.range(span.start()..=span.end()).copied().collect();
        let (mut next, mut present): (usize, Vec<(Slot, &JobFacts)>) = (0, Vec::new());
        for pair in cuts.windows(2) {
            present.retain(|(slot, _)| slot.end() > pair[0]);
            while let Some(begun) = of_gpu.get(next).filter(|(slot, _)| slot.start() <= pair[0]) {
                present.push(*begun);
                next += 1;
            }
            let time = Seconds::from_delta(pair[1] - pair[0]);
            let day = day_of(pair[0]);
            #[expect(clippy::cast_precision_loss, reason = "a GPU has few jobs at a time")]
            let each = time / present.len() as f64;
            match present.as_slice() {
                [] => found.push(HoldingTime { device, job: None, day, time }),
                several => {
                    found.extend(several.iter().map(|(_, job)| HoldingTime {
                        device,
                        job: Some(*job),
                        day,
                        time: each,
                    }));
                }
            }
        }
    }
    found
}
