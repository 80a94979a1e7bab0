//! Decides which connection is closed when there are too many.
//!
//! A new connection is always accepted. If there are too many connections, one is closed: a connection of the user
//! with the most connections or, if the new connection's user is at the limit per user, one of that user. Among the
//! user's connections, the one is closed that has waited longest for its client: for a request, for the rest of a
//! request, or for the client to read the answer. Connections that have answered a request are ranked separately from
//! those that have not, so that neither kind can displace the other. Connections that are being answered, and those
//! through which a running job reports, are closed last.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use tokio::time::Instant;

use super::peer::PeerUser;

/// The number of a connection, in the order of arrival.
pub(super) type ConnectionId = u64;

/// The state of a connection in the exchange with its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The client has sent nothing since the last answer, or no complete request yet.
    Idle,
    /// The client is sending a request.
    Receiving,
    /// The daemon is answering the request.
    Answering,
    /// The client does not read the answer.
    Stalled,
}

/// The groups of a user's connections, in the order in which connections are closed, except that [`Group::Used`] comes
/// first if it has more than half of the connections that a user may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Group {
    /// Connections that wait for their client and have answered no request yet.
    New,
    /// Connections that wait for their client and have answered a request before.
    Used,
    /// Connections whose request is being answered.
    Answering,
    /// Connections through which a running job reports.
    Reporting,
}

/// The maximum number of connections that expire at once, since all their clients may reconnect.
const EXPIRED_AT_ONCE: usize = 32;

/// The limits on the number of connections and on their waiting times.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConnectionLimits {
    /// The maximum number of connections in total.
    pub(super) all: usize,
    /// The maximum number of connections per user.
    pub(super) each: usize,
    /// The time within which a first request must arrive.
    pub(super) request: Duration,
    /// The time for which a connection waits for another request.
    pub(super) idle: Duration,
}

/// The part of a connection's state that decides when it is closed.
#[derive(Clone, Copy, Debug)]
struct ConnectionState {
    user: PeerUser,
    stage: Stage,
    /// The time at which the stage began.
    since: Instant,
    has_answered: bool,
    is_reporting: bool,
}

impl ConnectionState {
    const fn group(&self) -> Group {
        match (self.is_reporting, self.stage, self.has_answered) {
            (true, ..) => Group::Reporting,
            (_, Stage::Answering, _) => Group::Answering,
            (_, _, true) => Group::Used,
            (_, _, false) => Group::New,
        }
    }

    /// Returns the time limit of the connection's stage; `None` if the stage has no limit.
    const fn time_limit(&self, limits: &ConnectionLimits) -> Option<Duration> {
        match (self.stage, self.has_answered) {
            (Stage::Idle, false) => Some(limits.request),
            // Twice the handler's time limit, so that the handler refuses a late body first.
            (Stage::Receiving, _) => Some(limits.request.saturating_mul(2)),
            (Stage::Idle, true) if !self.is_reporting => Some(limits.idle),
            // An idle connection of a reporting job has no limit; answers are limited by the handler and by each write.
            _ => None,
        }
    }
}

/// The connections of one listener, in the order in which they are closed.
#[derive(Debug)]
pub(super) struct EvictionQueue {
    limits: ConnectionLimits,
    next_id: ConnectionId,
    connections: HashMap<ConnectionId, ConnectionState>,
    /// The connections of each user and group, those that have waited longest first. No set is empty.
    groups: BTreeMap<(PeerUser, Group), BTreeSet<(Instant, ConnectionId)>>,
}

impl EvictionQueue {
    pub(super) fn new(limits: ConnectionLimits) -> Self {
        Self { limits, next_id: 0, connections: HashMap::new(), groups: BTreeMap::new() }
    }

    /// Admits a new connection. Returns its id, and the id of the connection to close for it, if any.
    pub(super) fn admit(&mut self, user: PeerUser, now: Instant) -> (ConnectionId, Option<ConnectionId>) {
        let from = if self.total(user) >= self.limits.each {
            Some(user)
        } else if self.connections.len() >= self.limits.all {
            self.largest_user()
        } else {
            None
        };
        let evicted = from.and_then(|user| self.next_to_evict(user));
        if let Some(id) = evicted {
            self.remove(id);
        }
        let id = self.next_id;
        self.next_id += 1;
        self.insert(
            id,
            ConnectionState { user, stage: Stage::Idle, since: now, has_answered: false, is_reporting: false },
        );
        (id, evicted)
    }

    /// Removes one connection regardless of the limits, because the system allows no more open files.
    pub(super) fn evict(&mut self) -> Option<ConnectionId> {
        let id = self.largest_user().and_then(|user| self.next_to_evict(user))?;
        self.remove(id);
        Some(id)
    }

    /// Records that bytes have arrived, and restarts the connection's idle time, except during its first request: a client
    /// that sends that request slowly must not stay connected.
    pub(super) fn receive_bytes(&mut self, id: ConnectionId, now: Instant) {
        self.enter(id, Stage::Idle, Stage::Receiving, now, |state| state.has_answered);
    }

    /// Records that the head of a request has arrived; its body may still be missing.
    pub(super) fn begin_request(&mut self, id: ConnectionId, now: Instant) {
        self.change(id, |state| (state.stage, state.since) = (Stage::Receiving, now));
    }

    /// Records that the complete request has arrived, or that the rest of the request is not needed.
    pub(super) fn complete_request(&mut self, id: ConnectionId, now: Instant) {
        self.enter(id, Stage::Receiving, Stage::Answering, now, |_| true);
    }

    /// Records that the client has stopped reading its answer (`is_stalled`), or has resumed reading.
    pub(super) fn set_stalled(&mut self, id: ConnectionId, is_stalled: bool, now: Instant) {
        let (from, to) =
            if is_stalled { (Stage::Answering, Stage::Stalled) } else { (Stage::Stalled, Stage::Answering) };
        self.enter(id, from, to, now, |_| true);
    }

    /// Moves a connection to the stage `to`, if it is at the stage `from` and `applies`.
    fn enter(
        &mut self,
        id: ConnectionId,
        from: Stage,
        to: Stage,
        now: Instant,
        applies: impl Fn(&ConnectionState) -> bool,
    ) {
        if self.connections.get(&id).is_some_and(|state| state.stage == from && applies(state)) {
            self.change(id, |state| (state.stage, state.since) = (to, now));
        }
    }

    /// Records that a complete answer was sent.
    pub(super) fn complete_answer(&mut self, id: ConnectionId, now: Instant) {
        self.change(id, |state| {
            (state.stage, state.since, state.has_answered) = (Stage::Idle, now, true);
        });
    }

    /// Records that a running job has reported through this connection, which is then closed last. At most half of a
    /// user's connections are protected in this way; if there are more, the one that has waited longest loses its
    /// protection.
    pub(super) fn mark_reporting(&mut self, id: ConnectionId) {
        let Some(state) = self.connections.get(&id).copied() else { return };
        self.change(id, |state| state.is_reporting = true);
        if self.count(state.user, Group::Reporting) > self.limits.each / 2
            && let Some(oldest) = self.oldest(state.user, Group::Reporting)
        {
            self.change(oldest, |state| state.is_reporting = false);
        }
    }

    /// Removes connections that have waited too long for their clients, a limited number at once; returns their ids.
    pub(super) fn expire(&mut self, now: Instant) -> Vec<ConnectionId> {
        let is_late = |state: &ConnectionState| {
            state.time_limit(&self.limits).is_some_and(|limit| now.saturating_duration_since(state.since) >= limit)
        };
        let mut late: Vec<(Instant, ConnectionId)> =
            self.connections.iter().filter(|(_, state)| is_late(state)).map(|(id, state)| (state.since, *id)).collect();
        late.sort_unstable();
        late.truncate(EXPIRED_AT_ONCE);
        late.iter().for_each(|(_, id)| self.remove(*id));
        late.into_iter().map(|(_, id)| id).collect()
    }

    /// Removes a connection that has ended.
    pub(super) fn remove(&mut self, id: ConnectionId) {
        let Some(state) = self.connections.remove(&id) else { return };
        let key = (state.user, state.group());
        if let Some(group) = self.groups.get_mut(&key) {
            group.remove(&(state.since, id));
            if group.is_empty() {
                self.groups.remove(&key);
            }
        }
    }

    fn insert(&mut self, id: ConnectionId, state: ConnectionState) {
        self.groups.entry((state.user, state.group())).or_default().insert((state.since, id));
        self.connections.insert(id, state);
    }

    fn change(&mut self, id: ConnectionId, change: impl FnOnce(&mut ConnectionState)) {
        let Some(mut state) = self.connections.get(&id).copied() else { return };
        self.remove(id);
        change(&mut state);
        self.insert(id, state);
    }

    fn count(&self, user: PeerUser, group: Group) -> usize {
        self.groups.get(&(user, group)).map_or(0, BTreeSet::len)
    }

    fn total(&self, user: PeerUser) -> usize {
        [Group::New, Group::Used, Group::Answering, Group::Reporting]
            .into_iter()
            .map(|group| self.count(user, group))
            .sum()
    }

    fn largest_user(&self) -> Option<PeerUser> {
        self.groups.keys().map(|(user, _)| *user).max_by_key(|user| (self.total(*user), *user))
    }

    fn oldest(&self, user: PeerUser, group: Group) -> Option<ConnectionId> {
        self.groups.get(&(user, group))?.first().map(|(_, id)| *id)
    }

    /// Returns the user's connection to close next; `None` if the user has no connection.
    fn next_to_evict(&self, user: PeerUser) -> Option<ConnectionId> {
        let more_than_half = self.count(user, Group::Used) > self.limits.each / 2;
        let order = match more_than_half {
            true => [Group::Used, Group::New, Group::Answering, Group::Reporting],
            false => [Group::New, Group::Used, Group::Answering, Group::Reporting],
        };
        order.into_iter().find_map(|group| self.oldest(user, group))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMITS: ConnectionLimits =
        ConnectionLimits { all: 12, each: 8, request: Duration::from_secs(10), idle: Duration::from_secs(90) };
    const ATTACKER: PeerUser = PeerUser::User(65_534);
    const USER: PeerUser = PeerUser::User(1000);

    struct Scene {
        queue: EvictionQueue,
        start: Instant,
        steps: u64,
    }

    impl Scene {
        fn new() -> Self {
            Self { queue: EvictionQueue::new(LIMITS), start: Instant::now(), steps: 0 }
        }

        /// Advances the time by a millisecond.
        fn now(&mut self) -> Instant {
            self.steps += 1;
            self.start + Duration::from_millis(self.steps)
        }

        fn admit(&mut self, user: PeerUser) -> (ConnectionId, Option<ConnectionId>) {
            let now = self.now();
            self.queue.admit(user, now)
        }

        fn exchange(&mut self, id: ConnectionId) {
            let now = self.now();
            self.queue.begin_request(id, now);
            self.queue.complete_request(id, now);
            self.queue.complete_answer(id, now);
        }

        fn has(&self, id: ConnectionId) -> bool {
            self.queue.connections.contains_key(&id)
        }
    }

    #[test]
    fn a_user_only_loses_its_own_connections_and_only_when_all_are_taken() {
        let mut scene = Scene::new();
        let own: Vec<ConnectionId> = (0..4).map(|_| scene.admit(USER).0).collect();
        for round in 0..100 {
            let (_, displaced) = scene.admit(ATTACKER);
            assert_eq!(displaced.is_some(), round >= LIMITS.each, "{round}");
        }
        assert!(own.iter().all(|id| scene.has(*id)));
        // The user's next connection exceeds the total limit; the attacker has the most connections and loses one.
        let (newest, displaced) = scene.admit(USER);
        assert!(displaced.is_some_and(|id| id >= 4) && scene.has(newest) && own.iter().all(|id| scene.has(*id)));
    }

    #[test]
    fn new_and_used_connections_of_a_user_do_not_push_each_other_out() {
        let mut scene = Scene::new();
        let (client, _) = scene.admit(USER);
        scene.exchange(client);
        for _ in 0..100 {
            scene.admit(USER);
        }
        assert!(scene.has(client), "unused connections push out no used one");
        for _ in 0..100 {
            let (attacker, _) = scene.admit(USER);
            scene.exchange(attacker);
        }
        // Connections that have answered a request keep at most half of the user's share, so a new connection has time
        // to send its first request.
        let (newcomer, _) = scene.admit(USER);
        for _ in 0..LIMITS.each / 2 - 1 {
            scene.admit(USER);
            assert!(scene.has(newcomer));
        }
    }

    #[test]
    fn answering_and_reporting_connections_are_evicted_last() {
        let mut scene = Scene::new();
        let (job, _) = scene.admit(USER);
        scene.exchange(job);
        scene.queue.mark_reporting(job);
        let (events, _) = scene.admit(USER);
        let now = scene.now();
        scene.queue.begin_request(events, now);
        scene.queue.complete_request(events, now);
        for _ in 0..200 {
            let (attacker, _) = scene.admit(USER);
            scene.exchange(attacker);
        }
        assert!(scene.has(job) && scene.has(events));
        // A connection whose client does not read the answer counts as waiting, and can be closed like any other.
        let now = scene.now();
        scene.queue.set_stalled(events, true, now);
        for _ in 0..LIMITS.each {
            scene.admit(USER);
        }
        assert!(scene.has(job) && !scene.has(events));
    }

    #[test]
    fn only_connections_that_wait_for_their_client_expire() {
        let mut scene = Scene::new();
        let ids: Vec<ConnectionId> = (0..5).map(|_| scene.admit(USER).0).collect();
        let [silent, slow, kept, job, busy] = ids[..] else { panic!("five") };
        let now = scene.now();
        scene.queue.begin_request(slow, now);
        for id in [kept, job, busy] {
            scene.exchange(id);
        }
        scene.queue.mark_reporting(job);
        scene.queue.begin_request(busy, now);
        scene.queue.complete_request(busy, now);
        // Slowly arriving bytes do not restart the waiting time.
        scene.queue.receive_bytes(silent, now + Duration::from_secs(9));
        assert!(scene.queue.expire(now + Duration::from_secs(9)).is_empty());
        assert_eq!(scene.queue.expire(now + LIMITS.request), [silent]);
        assert_eq!(scene.queue.expire(now + LIMITS.request * 2), [slow]);
        assert_eq!(scene.queue.expire(now + LIMITS.idle + Duration::from_secs(1)), [kept]);
        assert!(scene.queue.expire(now + LIMITS.idle * 1000).is_empty());
        assert!(scene.has(job) && scene.has(busy));
    }

    #[test]
    fn remote_clients_are_distinguished_by_their_addresses() {
        let remote = |text: &str| PeerUser::remote(text.parse().expect("an address"));
        assert_ne!(remote("10.0.0.1"), remote("10.0.0.2"));
        assert_eq!(remote("::ffff:10.0.0.1"), remote("10.0.0.1"));
        assert_eq!(remote("2001:db8::1"), remote("2001:db8::2"));
        assert_ne!(remote("2001:db8::1"), remote("2001:db8:0:1::1"));
        let mut scene = Scene::new();
        let (client, _) = scene.admit(remote("10.0.0.2"));
        for _ in 0..100 {
            scene.admit(remote("10.0.0.1"));
        }
        assert!(scene.has(client), "another machine's connections push out none of this one's");
    }

    proptest! {
        #[test]
        fn newcomers_are_always_admitted_and_the_limits_hold(
            steps in prop::collection::vec((0u8..10, 0u32..3, 0u64..60), 1..400)
        ) {
            let mut scene = Scene::new();
            for (what, user, id) in steps {
                let now = scene.now();
                match what {
                    0..=2 => {
                        let (id, displaced) = scene.queue.admit(PeerUser::User(user), now);
                        prop_assert!(scene.has(id) && displaced.is_none_or(|gone| gone != id && !scene.has(gone)));
                    }
                    3 => scene.queue.begin_request(id, now),
                    4 => scene.queue.complete_request(id, now),
                    5 => scene.queue.set_stalled(id, id % 2 == 0, now),
                    6 => scene.queue.complete_answer(id, now),
                    7 => scene.queue.mark_reporting(id),
                    8 => scene.queue.receive_bytes(id, now),
                    _ => scene.queue.remove(id),
                }
                let queue = &scene.queue;
                prop_assert!(queue.connections.len() <= LIMITS.all);
                prop_assert!(queue.groups.values().all(|group| !group.is_empty()));
                prop_assert_eq!(queue.groups.values().map(BTreeSet::len).sum::<usize>(), queue.connections.len());
                for user in 0..3 {
                    let user = PeerUser::User(user);
                    prop_assert!(queue.total(user) <= LIMITS.each);
                    prop_assert!(queue.count(user, Group::Reporting) <= LIMITS.each / 2);
                }
            }
        }
    }
}
