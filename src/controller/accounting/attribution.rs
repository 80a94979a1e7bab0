//! Who held a GPU in a time in which it was not read: jobs that ended in it, and those that go on.

use chrono::{DateTime, Utc};

use super::Accounting;
use super::occupancy::{EndedOccupancy, MOMENT};
use crate::controller::jobs::Job;
use crate::controller::node::Node;
use wattune_core::domain::{DeviceId, GpuId};
use wattune_core::ledger::OccupancySpan;
use wattune_core::units::Seconds;

impl Accounting {
    /// Keeps in mind on which boards a job was that ends now: those that have not answered since this daemon began.
    pub(in crate::controller) fn remember_gone(&mut self, node: &mut Node<'_>, job: &Job) {
        let now = node.now().utc;
        for board in &job.spec.gpus {
            let device = DeviceId::from(board);
            let Some(point) = self.backlog.recovered.iter().find(|point| point.device == device) else { continue };
            let stays = self.stays_of(node, job, point.at).into_iter();
            let gone = stays.map(|stay| OccupancySpan { until: stay.until.or(Some(now)), ..stay });
            self.backlog.gone.extend(gone.map(|stay| EndedOccupancy { boards: vec![board.clone()], stay }));
        }
    }

    /// Who held a board since it was read last, `since`, by an earlier daemon.
    pub(in crate::controller) fn occupancy_of(
        &self,
        node: &Node<'_>,
        board: &GpuId,
        since: DateTime<Utc>,
    ) -> Vec<OccupancySpan> {
        let going_on = node.jobs.iter().filter(|job| job.spec.gpus.contains(board));
        let gone = self.backlog.gone.iter().filter(|gone| gone.boards.contains(board)).map(|gone| gone.stay.clone());
        let mut stays: Vec<OccupancySpan> =
            gone.chain(going_on.flat_map(|job| self.stays_of(node, job, since))).collect();
        stays.sort_by_key(|stay| stay.from);
        stays
    }

    /// When a job held its boards since then, as far as anybody can tell: a job that was heard of before this daemon
    /// began and again held them in between if its lease was not over.
    fn stays_of(&self, node: &Node<'_>, job: &Job, since: DateTime<Utc>) -> Vec<OccupancySpan> {
        let stay = |from, until| OccupancySpan { job: job.id.clone(), from, until };
        let Some(heard) = self.backlog.heard.get(&job.id) else { return vec![stay(job.registered_at, None)] };
        let away = self.backlog.away.as_ref();
        let was_there = away.filter(|away| away.seen.leases.contains_key(&job.id));
        // Who held a board when the wall clock was set back may have come later than that by its words.
        let from = match was_there {
            Some(away) if job.registered_at > away.seen.at => since.min(job.registered_at),
            _ => job.registered_at,
        };
        let goes_on = match away {
            Some(away) if job.is_alive() => away.span <= away.lease_left(job),
            Some(away) => away.span + node.now().monotonic.since(away.back) <= away.lease_left(job),
            None => {
                let again = if job.is_alive() { node.started_at } else { node.now().utc };
                Seconds::from_delta(again - since.max(*heard)) <= job.spec.lease
            }
        };
        if goes_on {
            return vec![stay(from, None)];
        }
        let last = was_there.map_or(*heard, |away| away.seen.at.max(*heard));
        let before = (last - since >= MOMENT).then(|| stay(from, Some(last)));
        before.into_iter().chain(job.is_alive().then(|| stay(node.started_at, None))).collect()
    }
}
