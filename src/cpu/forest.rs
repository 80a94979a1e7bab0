//! Follows the processes of jobs and their descendants from reading to reading (pure).
//!
//! For each process the kernel keeps its own CPU time and the summed CPU time of the ended children that it waited for,
//! with their descendants. When a child ends, its time moves into the parent's sum and must not count twice. A process
//! once found below a job's process stays with the job, even if its parent ends first.

use std::collections::{BTreeMap, BTreeSet};

use wattune_core::domain::{JobId, Process};

/// The kernel's record of one process (`/proc/<pid>/stat`). Times are in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stat {
    /// The time from the machine's start to the start of the process.
    pub(super) start: u64,
    /// The process that started or adopted this one.
    pub(super) parent: u32,
    /// The CPU time of the process itself, all threads included.
    pub(super) own_time: u64,
    /// The CPU time of ended children that the process waited for, their descendants included.
    pub(super) waited: u64,
}

impl Stat {
    fn all(&self) -> u64 {
        self.own_time + self.waited
    }
}

#[derive(Debug)]
struct Member {
    job: JobId,
    stat: Stat,
    /// True if the job named this process itself; false for a descendant.
    is_named: bool,
}

/// The processes of all jobs whose CPU time is counted by process id.
#[derive(Debug, Default)]
pub(super) struct Forest {
    members: BTreeMap<u32, Member>,
    /// Processes that are known to belong to no job, so that they need not be read again.
    unrelated: BTreeSet<u32>,
    /// The ticks of CPU time that each job has used since [`Self::follow`].
    used: BTreeMap<JobId, u64>,
}

impl Forest {
    /// Starts to count the CPU time of the processes `roots` and their descendants for a job. CPU time used before is
    /// not counted. `all` are the ids of the machine's processes; `read` reads the record of one of them.
    pub(super) fn follow(&mut self, job: &JobId, roots: &[Process], all: &[u32], read: impl Fn(u32) -> Option<Stat>) {
        self.used.insert(job.clone(), 0);
        for root in roots {
            if let Some(stat) = read(root.pid).filter(|stat| stat.start == root.start) {
                self.members.insert(root.pid, Member { job: job.clone(), stat, is_named: true });
            }
        }
        self.reassign_descendants(job);
        self.unrelated.clear();
        for (other, ticks) in self.adopt(all, &read).into_iter().filter(|(owner, _)| owner != job) {
            *self.used.entry(other).or_default() += ticks;
        }
    }

    /// Adds processes with their descendants to a job that is followed already, except those that belong to another
    /// job. If a parent of an added process is registered later, the process moves to that registration. CPU time that
    /// a process used before counts if `is_new`: the process has started since the last reading.
    pub(super) fn extend(&mut self, job: &JobId, found: &[Process], is_new: bool, read: impl Fn(u32) -> Option<Stat>) {
        for process in found {
            if self.members.contains_key(&process.pid) {
                continue;
            }
            let Some(stat) = read(process.pid).filter(|stat| stat.start == process.start) else { continue };
            self.members.insert(process.pid, Member { job: job.clone(), stat, is_named: false });
            *self.used.entry(job.clone()).or_default() += if is_new { stat.all() } else { 0 };
        }
        // Their descendants were unrelated until now.
        self.unrelated.clear();
    }

    /// Moves all descendants of a job's processes from other jobs to this job, except processes that another job named
    /// itself.
    fn reassign_descendants(&mut self, job: &JobId) {
        loop {
            let parent_is_own = |stat: &Stat| self.members.get(&stat.parent).is_some_and(|parent| parent.job == *job);
            let is_moved = |member: &Member| !member.is_named && member.job != *job && parent_is_own(&member.stat);
            let found: Vec<u32> = self.members.iter().filter(|(_, m)| is_moved(m)).map(|(pid, _)| *pid).collect();
            if found.is_empty() {
                break;
            }
            for pid in found {
                if let Some(member) = self.members.get_mut(&pid) {
                    member.job = job.clone();
                }
            }
        }
    }

    /// Ends the counting for a job. Its processes below another job's process belong to that job again: the CPU time that
    /// they have used so far is not counted for it.
    pub(super) fn unfollow(&mut self, job: &JobId) {
        loop {
            let job_above = |member: &Member| {
                let above = &self.members.get(&member.stat.parent)?.job;
                (member.job == *job && above != job).then(|| above.clone())
            };
            let handed: Vec<(u32, JobId)> =
                self.members.iter().filter_map(|(pid, member)| Some((*pid, job_above(member)?))).collect();
            if handed.is_empty() {
                break;
            }
            for (pid, above) in handed {
                if let Some(member) = self.members.get_mut(&pid) {
                    (member.job, member.is_named) = (above, false);
                }
            }
        }
        self.members.retain(|_, member| member.job != *job);
        self.used.remove(job);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.used.is_empty()
    }

    /// Records a new reading of all processes and adds the CPU time used since the previous one.
    pub(super) fn update(&mut self, all: &[u32], read: impl Fn(u32) -> Option<Stat>) {
        let before: BTreeMap<u32, Stat> = self.members.iter().map(|(pid, member)| (*pid, member.stat)).collect();
        let mut ended: Vec<(u32, JobId)> = Vec::new();
        self.members.retain(|pid, member| match read(*pid).filter(|now| now.start == member.stat.start) {
            Some(now) => {
                member.stat = now;
                true
            }
            None => {
                ended.push((*pid, member.job.clone()));
                false
            }
        });
        // CPU time of ended processes that is counted already, by nearest living ancestor: the ancestor's sum over
        // waited-for children may contain it again.
        let mut moved: BTreeMap<u32, u64> = BTreeMap::new();
        for (pid, _) in &ended {
            let above = std::iter::successors(Some(*pid), |pid| before.get(pid).map(|stat| stat.parent));
            // A chain longer than the number of processes would be a loop through a reused process id.
            if let Some(heir) = above.skip(1).take(before.len() + 1).find(|pid| self.members.contains_key(pid)) {
                *moved.entry(heir).or_default() += before[pid].all();
            }
        }
        for (pid, member) in &self.members {
            let Some(before) = before.get(pid) else { continue };
            let own_time = member.stat.own_time.saturating_sub(before.own_time);
            let waited = member.stat.waited.saturating_sub(before.waited);
            let counted = moved.get(pid).copied().unwrap_or_default().min(waited);
            *self.used.entry(member.job.clone()).or_default() += own_time + waited - counted;
        }
        self.unrelated.retain(|pid| all.binary_search(pid).is_ok());
        for (job, ticks) in self.adopt(all, &read) {
            *self.used.entry(job).or_default() += ticks;
        }
    }

    /// Assigns new descendants of followed processes to their parents' jobs. Returns the job and the ticks of CPU time
    /// of each new descendant.
    fn adopt(&mut self, all: &[u32], read: &impl Fn(u32) -> Option<Stat>) -> Vec<(JobId, u64)> {
        let unknown = all.iter().filter(|pid| !self.members.contains_key(pid) && !self.unrelated.contains(pid));
        let mut fresh: BTreeMap<u32, Stat> = unknown.filter_map(|pid| Some((*pid, read(*pid)?))).collect();
        let mut adopted = Vec::new();
        loop {
            let found: Vec<u32> =
                fresh.iter().filter(|(_, stat)| self.members.contains_key(&stat.parent)).map(|(pid, _)| *pid).collect();
            if found.is_empty() {
                break;
            }
            for pid in found {
                let Some(stat) = fresh.remove(&pid) else { continue };
                let Some(job) = self.members.get(&stat.parent).map(|parent| parent.job.clone()) else { continue };
                adopted.push((job.clone(), stat.all()));
                self.members.insert(pid, Member { job, stat, is_named: false });
            }
        }
        self.unrelated.extend(fresh.into_keys());
        adopted
    }

    /// Returns the ticks of CPU time that a job's processes have used since [`Self::follow`].
    pub(super) fn used(&self, job: &JobId) -> u64 {
        self.used.get(job).copied().unwrap_or_default()
    }

    pub(super) fn owners(&self) -> impl Iterator<Item = (u32, &JobId)> {
        self.members.iter().map(|(pid, member)| (*pid, &member.job))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn job(name: &str) -> JobId {
        JobId::new(name).expect("an id")
    }

    /// A simulated kernel that accounts for the CPU time of processes.
    #[derive(Default)]
    struct Kernel {
        processes: BTreeMap<u32, Stat>,
        /// The true ticks of the job's processes, dead or alive.
        truth: u64,
        next: u32,
        ticks: u64,
    }

    impl Kernel {
        fn spawn(&mut self, parent: u32) -> u32 {
            self.next += 1;
            self.ticks += 1;
            self.processes.insert(self.next, Stat { start: self.ticks, parent, own_time: 0, waited: 0 });
            self.next
        }

        fn burn(&mut self, pid: u32, ticks: u64) {
            self.processes.get_mut(&pid).expect("there").own_time += ticks;
            self.truth += ticks;
        }

        /// Ends a process that its parent waits for; its children go to init.
        fn end(&mut self, pid: u32) {
            let stat = self.processes.remove(&pid).expect("there");
            for child in self.processes.values_mut().filter(|s| s.parent == pid) {
                child.parent = 1;
            }
            if let Some(parent) = self.processes.get_mut(&stat.parent) {
                parent.waited += stat.all();
            }
        }

        fn all(&self) -> Vec<u32> {
            self.processes.keys().copied().collect()
        }

        fn show(&self, forest: &mut Forest) {
            forest.update(&self.all(), |pid| self.processes.get(&pid).copied());
        }
    }

    fn followed(kernel: &Kernel, root: u32) -> Forest {
        let mut forest = Forest::default();
        let root = Process { pid: root, start: kernel.processes[&root].start };
        forest.follow(&job("a"), &[root], &kernel.all(), |pid| kernel.processes.get(&pid).copied());
        forest
    }

    #[test]
    fn children_count_once_and_earlier_use_does_not() {
        let mut kernel = Kernel { next: 1, ..Kernel::default() };
        let root = kernel.spawn(1);
        kernel.burn(root, 1000);
        let mut forest = followed(&kernel, root);
        assert_eq!(forest.used(&job("a")), 0);
        let child = kernel.spawn(root);
        let grandchild = kernel.spawn(child);
        kernel.burn(child, 7);
        kernel.burn(grandchild, 5);
        kernel.show(&mut forest);
        assert_eq!(forest.used(&job("a")), 12);
        assert_eq!(forest.owners().count(), 3);
        kernel.burn(child, 3);
        kernel.end(grandchild);
        kernel.end(child);
        kernel.show(&mut forest);
        assert_eq!(forest.used(&job("a")), 15);
        kernel.show(&mut forest);
        assert_eq!(forest.used(&job("a")), 15);
    }

    #[test]
    fn a_reused_process_id_is_not_followed_and_an_orphan_is() {
        let mut kernel = Kernel { next: 1, ..Kernel::default() };
        let root = kernel.spawn(1);
        let mut forest = followed(&kernel, root);
        let child = kernel.spawn(root);
        kernel.show(&mut forest);
        kernel.end(root);
        // The root's process id is reused by an unrelated process that has used CPU time.
        kernel.processes.insert(root, Stat { start: 999, parent: 1, own_time: 500, waited: 0 });
        kernel.burn(child, 9);
        kernel.show(&mut forest);
        assert_eq!(forest.used(&job("a")), 9);
        assert_eq!(forest.owners().map(|(pid, _)| pid).collect::<Vec<_>>(), [child]);
    }

    #[test]
    fn nested_jobs_are_kept_apart() {
        let mut kernel = Kernel { next: 1, ..Kernel::default() };
        let outer = kernel.spawn(1);
        let inner = kernel.spawn(outer);
        let older = kernel.spawn(inner);
        let mut forest = Forest::default();
        let process = |pid: u32, kernel: &Kernel| Process { pid, start: kernel.processes[&pid].start };
        let (a, b) = (job("a"), job("b"));
        forest.follow(&a, &[process(outer, &kernel)], &kernel.all(), |pid| kernel.processes.get(&pid).copied());
        forest.follow(&b, &[process(inner, &kernel)], &kernel.all(), |pid| kernel.processes.get(&pid).copied());
        let below = kernel.spawn(inner);
        kernel.burn(outer, 1);
        kernel.burn(inner, 10);
        kernel.burn(below, 100);
        kernel.burn(older, 1000);
        kernel.show(&mut forest);
        assert_eq!((forest.used(&a), forest.used(&b)), (1, 1110));
        forest.unfollow(&b);
        assert_eq!((forest.is_empty(), forest.used(&b)), (false, 0));
        // Its processes belong to the job above again, from here on.
        kernel.burn(inner, 5);
        kernel.burn(below, 2);
        kernel.show(&mut forest);
        assert_eq!((forest.used(&a), forest.owners().count()), (8, 4));
        kernel.end(below);
        kernel.end(inner);
        kernel.show(&mut forest);
        assert_eq!((forest.used(&a), forest.owners().count()), (8, 2));
    }

    #[test]
    fn processes_can_be_added_and_a_registration_takes_them_over() {
        let mut kernel = Kernel { next: 1, ..Kernel::default() };
        let launcher = kernel.spawn(1);
        let rank = kernel.spawn(launcher);
        let loader = kernel.spawn(rank);
        kernel.burn(rank, 100);
        let process = |pid: u32, kernel: &Kernel| Process { pid, start: kernel.processes[&pid].start };
        let mut forest = Forest::default();
        let (found, explicit) = (job("found"), job("explicit"));
        forest.follow(&found, &[], &kernel.all(), |pid| kernel.processes.get(&pid).copied());
        forest.extend(&found, &[process(rank, &kernel)], false, |pid| kernel.processes.get(&pid).copied());
        kernel.burn(rank, 7);
        kernel.show(&mut forest);
        assert_eq!(forest.used(&found), 7, "what it used before it was found does not count");
        let late = kernel.spawn(1);
        kernel.burn(late, 5);
        forest.extend(&found, &[process(late, &kernel)], true, |pid| kernel.processes.get(&pid).copied());
        kernel.show(&mut forest);
        assert_eq!(forest.used(&found), 12, "what it used since its start counts");
        forest
            .follow(&explicit, &[process(launcher, &kernel)], &kernel.all(), |pid| kernel.processes.get(&pid).copied());
        kernel.burn(rank, 20);
        kernel.burn(loader, 3);
        kernel.show(&mut forest);
        assert_eq!((forest.used(&found), forest.used(&explicit)), (12, 23));
    }

    proptest! {
        #[test]
        fn ended_children_are_counted_to_the_tick(
            steps in prop::collection::vec((0_u8..5, any::<prop::sample::Index>(), 0_u64..50), 1..200)
        ) {
            let mut kernel = Kernel { next: 1, ..Kernel::default() };
            let root = kernel.spawn(1);
            let mut forest = followed(&kernel, root);
            for (what, which, ticks) in steps {
                let pids = kernel.all();
                let pid = pids[which.index(pids.len())];
                match what {
                    0 => drop(kernel.spawn(pid)),
                    // Only processes without children end, as in a program that waits for all of its children.
                    1 if pid != root && !kernel.processes.values().any(|s| s.parent == pid) => kernel.end(pid),
                    2 => {
                        kernel.show(&mut forest);
                        prop_assert_eq!(forest.used(&job("a")), kernel.truth);
                    }
                    _ => kernel.burn(pid, ticks),
                }
            }
            kernel.show(&mut forest);
            prop_assert_eq!(forest.used(&job("a")), kernel.truth);
        }
    }
}
