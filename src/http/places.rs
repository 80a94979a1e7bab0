//! Decides which connection is closed when there are too many. Each open connection has a place in a table.
//!
//! A new connection always gets a place. If there are too many connections, one is closed: a connection of the user
//! with the most connections or, if the new connection's user is at the limit per user, one of that user. Among the
//! user's connections, the one is closed that has waited longest for its client: for a request, for the rest of a
//! request, or for the client to read the answer. Connections that have answered a request are ranked separately from
//! those that have not, so that neither kind can displace the other. Connections that are being answered, and those
//! through which a running job reports, are closed last.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use tokio::time::Instant;

/// The user at the other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Peer {
    /// A user of this machine, by user id.
    User(u32),
    /// A client on another machine, by its address.
    Remote(IpAddr),
    /// A user whom the kernel does not report.
    Unknown,
}

impl Peer {
    /// Returns the client at an address of another machine. One machine may have all IPv6 addresses with the same first
    /// 64 bits, which count as one.
    pub(super) fn remote(address: IpAddr) -> Self {
        Self::Remote(match address.to_canonical() {
            IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64)),
            v4 => v4,
        })
    }
}

/// The number of a connection, in the order of arrival.
pub(super) type Id = u64;

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

/// The groups of a user's connections, in the order in which connections are closed, except that [`Pool::Useful`] comes
/// first if it has more than half of the places that a user may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Pool {
    /// Connections that wait for their client and have answered no request yet.
    New,
    /// Connections that wait for their client and have answered a request before.
    Useful,
    /// Connections whose request is being answered.
    Busy,
    /// Connections through which a running job reports.
    Reports,
}

/// The maximum number of connections that expire at once, since all their clients may reconnect.
const EXPIRED_AT_ONCE: usize = 32;

/// The limits on the number of connections and on their waiting times.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// The maximum number of connections in total.
    pub(super) all: usize,
    /// The maximum number of connections per user.
    pub(super) each: usize,
    /// The time within which a first request must arrive.
    pub(super) request: Duration,
    /// The time for which a connection waits for another request.
    pub(super) idle: Duration,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    peer: Peer,
    stage: Stage,
    /// The time at which the stage began.
    since: Instant,
    has_answered: bool,
    reports: bool,
}

impl Place {
    const fn pool(&self) -> Pool {
        match (self.reports, self.stage, self.has_answered) {
            (true, ..) => Pool::Reports,
            (_, Stage::Answering, _) => Pool::Busy,
            (_, _, true) => Pool::Useful,
            (_, _, false) => Pool::New,
        }
    }

    /// Returns the time limit of the connection's stage; `None` if the stage has no limit.
    const fn time_limit(&self, limits: &Limits) -> Option<Duration> {
        match (self.stage, self.has_answered) {
            (Stage::Idle, false) => Some(limits.request),
            // Twice the handler's time limit, so that the handler refuses a late body first.
            (Stage::Receiving, _) => Some(limits.request.saturating_mul(2)),
            (Stage::Idle, true) if !self.reports => Some(limits.idle),
            // An idle connection of a reporting job has no limit; answers are limited by the handler and by each write.
            _ => None,
        }
    }
}

/// The places of one listener's connections.
#[derive(Debug)]
pub(super) struct Places {
    limits: Limits,
    next: Id,
    places: HashMap<Id, Place>,
    /// The connections of each user and pool, those that have waited longest first. No set is empty.
    pools: BTreeMap<(Peer, Pool), BTreeSet<(Instant, Id)>>,
}

impl Places {
    pub(super) fn new(limits: Limits) -> Self {
        Self { limits, next: 0, places: HashMap::new(), pools: BTreeMap::new() }
    }

    /// Admits a new connection. Returns its id, and the id of the connection to close for it, if any.
    pub(super) fn admit(&mut self, peer: Peer, now: Instant) -> (Id, Option<Id>) {
        let from = if self.of(peer) >= self.limits.each {
            Some(peer)
        } else if self.places.len() >= self.limits.all {
            self.largest_user()
        } else {
            None
        };
        let evicted = from.and_then(|peer| self.victim(peer));
        if let Some(id) = evicted {
            self.remove(id);
        }
        let id = self.next;
        self.next += 1;
        self.insert(id, Place { peer, stage: Stage::Idle, since: now, has_answered: false, reports: false });
        (id, evicted)
    }

    /// Removes one connection regardless of the limits, because the system allows no more open files.
    pub(super) fn evict(&mut self) -> Option<Id> {
        let id = self.largest_user().and_then(|peer| self.victim(peer))?;
        self.remove(id);
        Some(id)
    }

    /// Records that bytes have arrived, and restarts the connection's idle time, except during its first request: a client
    /// that sends that request slowly must not hold its place.
    pub(super) fn receive(&mut self, id: Id, now: Instant) {
        self.enter(id, Stage::Idle, Stage::Receiving, now, |place| place.has_answered);
    }

    /// Records that the head of a request has arrived; its body may still be missing.
    pub(super) fn begin(&mut self, id: Id, now: Instant) {
        self.change(id, |place| (place.stage, place.since) = (Stage::Receiving, now));
    }

    /// Records that the complete request has arrived, or that the rest of the request is not needed.
    pub(super) fn arrived(&mut self, id: Id, now: Instant) {
        self.enter(id, Stage::Receiving, Stage::Answering, now, |_| true);
    }

    /// Records that the client has stopped reading its answer (`stalls`), or has resumed reading.
    pub(super) fn stall(&mut self, id: Id, stalls: bool, now: Instant) {
        let (from, to) = if stalls { (Stage::Answering, Stage::Stalled) } else { (Stage::Stalled, Stage::Answering) };
        self.enter(id, from, to, now, |_| true);
    }

    fn enter(&mut self, id: Id, from: Stage, to: Stage, now: Instant, does: impl Fn(&Place) -> bool) {
        if self.places.get(&id).is_some_and(|place| place.stage == from && does(place)) {
            self.change(id, |place| (place.stage, place.since) = (to, now));
        }
    }

    /// Records that a complete answer was sent.
    pub(super) fn answered(&mut self, id: Id, now: Instant) {
        self.change(id, |place| {
            (place.stage, place.since, place.has_answered) = (Stage::Idle, now, true);
        });
    }

    /// Records that a running job has reported through this connection, which is then closed last. At most half of a
    /// user's places are protected in this way; if there are more, the one that has waited longest loses its
    /// protection.
    pub(super) fn reported(&mut self, id: Id) {
        let Some(place) = self.places.get(&id).copied() else { return };
        self.change(id, |place| place.reports = true);
        if self.count(place.peer, Pool::Reports) > self.limits.each / 2
            && let Some(oldest) = self.oldest(place.peer, Pool::Reports)
        {
            self.change(oldest, |place| place.reports = false);
        }
    }

    /// Removes connections that have waited too long for their clients, a limited number at once; returns their ids.
    pub(super) fn expire(&mut self, now: Instant) -> Vec<Id> {
        let is_late = |place: &Place| {
            place.time_limit(&self.limits).is_some_and(|limit| now.saturating_duration_since(place.since) >= limit)
        };
        let mut late: Vec<(Instant, Id)> =
            self.places.iter().filter(|(_, place)| is_late(place)).map(|(id, place)| (place.since, *id)).collect();
        late.sort_unstable();
        late.truncate(EXPIRED_AT_ONCE);
        late.iter().for_each(|(_, id)| self.remove(*id));
        late.into_iter().map(|(_, id)| id).collect()
    }

    /// Removes a connection that has ended.
    pub(super) fn remove(&mut self, id: Id) {
        let Some(place) = self.places.remove(&id) else { return };
        let key = (place.peer, place.pool());
        if let Some(pool) = self.pools.get_mut(&key) {
            pool.remove(&(place.since, id));
            if pool.is_empty() {
                self.pools.remove(&key);
            }
        }
    }

    fn insert(&mut self, id: Id, place: Place) {
        self.pools.entry((place.peer, place.pool())).or_default().insert((place.since, id));
        self.places.insert(id, place);
    }

    fn change(&mut self, id: Id, change: impl FnOnce(&mut Place)) {
        let Some(mut place) = self.places.get(&id).copied() else { return };
        self.remove(id);
        change(&mut place);
        self.insert(id, place);
    }

    fn count(&self, peer: Peer, pool: Pool) -> usize {
        self.pools.get(&(peer, pool)).map_or(0, BTreeSet::len)
    }

    fn of(&self, peer: Peer) -> usize {
        [Pool::New, Pool::Useful, Pool::Busy, Pool::Reports].into_iter().map(|pool| self.count(peer, pool)).sum()
    }

    fn largest_user(&self) -> Option<Peer> {
        self.pools.keys().map(|(peer, _)| *peer).max_by_key(|peer| (self.of(*peer), *peer))
    }

    fn oldest(&self, peer: Peer, pool: Pool) -> Option<Id> {
        self.pools.get(&(peer, pool))?.first().map(|(_, id)| *id)
    }

    /// Returns the user's connection to close next; `None` if the user has no connection.
    fn victim(&self, peer: Peer) -> Option<Id> {
        let more_than_half = self.count(peer, Pool::Useful) > self.limits.each / 2;
        let order = match more_than_half {
            true => [Pool::Useful, Pool::New, Pool::Busy, Pool::Reports],
            false => [Pool::New, Pool::Useful, Pool::Busy, Pool::Reports],
        };
        order.into_iter().find_map(|pool| self.oldest(peer, pool))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMITS: Limits = Limits { all: 12, each: 8, request: Duration::from_secs(10), idle: Duration::from_secs(90) };
    const ATTACKER: Peer = Peer::User(65_534);
    const USER: Peer = Peer::User(1000);

    struct Scene {
        places: Places,
        start: Instant,
        steps: u64,
    }

    impl Scene {
        fn new() -> Self {
            Self { places: Places::new(LIMITS), start: Instant::now(), steps: 0 }
        }

        /// Advances the time by a millisecond.
        fn now(&mut self) -> Instant {
            self.steps += 1;
            self.start + Duration::from_millis(self.steps)
        }

        fn admit(&mut self, peer: Peer) -> (Id, Option<Id>) {
            let now = self.now();
            self.places.admit(peer, now)
        }

        fn exchange(&mut self, id: Id) {
            let now = self.now();
            self.places.begin(id, now);
            self.places.arrived(id, now);
            self.places.answered(id, now);
        }

        fn has(&self, id: Id) -> bool {
            self.places.places.contains_key(&id)
        }
    }

    #[test]
    fn a_user_only_loses_its_own_connections_and_only_when_all_are_taken() {
        let mut scene = Scene::new();
        let own: Vec<Id> = (0..4).map(|_| scene.admit(USER).0).collect();
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
        // Connections that have answered a request keep at most half of the places, so a new connection has time to
        // send its first request.
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
        scene.places.reported(job);
        let (events, _) = scene.admit(USER);
        let now = scene.now();
        scene.places.begin(events, now);
        scene.places.arrived(events, now);
        for _ in 0..200 {
            let (attacker, _) = scene.admit(USER);
            scene.exchange(attacker);
        }
        assert!(scene.has(job) && scene.has(events));
        // A connection whose client does not read the answer counts as waiting, and can be closed like any other.
        let now = scene.now();
        scene.places.stall(events, true, now);
        for _ in 0..LIMITS.each {
            scene.admit(USER);
        }
        assert!(scene.has(job) && !scene.has(events));
    }

    #[test]
    fn only_connections_that_wait_for_their_client_expire() {
        let mut scene = Scene::new();
        let ids: Vec<Id> = (0..5).map(|_| scene.admit(USER).0).collect();
        let [silent, slow, kept, job, busy] = ids[..] else { panic!("five") };
        let now = scene.now();
        scene.places.begin(slow, now);
        for id in [kept, job, busy] {
            scene.exchange(id);
        }
        scene.places.reported(job);
        scene.places.begin(busy, now);
        scene.places.arrived(busy, now);
        // Slowly arriving bytes do not restart the waiting time.
        scene.places.receive(silent, now + Duration::from_secs(9));
        assert!(scene.places.expire(now + Duration::from_secs(9)).is_empty());
        assert_eq!(scene.places.expire(now + LIMITS.request), [silent]);
        assert_eq!(scene.places.expire(now + LIMITS.request * 2), [slow]);
        assert_eq!(scene.places.expire(now + LIMITS.idle + Duration::from_secs(1)), [kept]);
        assert!(scene.places.expire(now + LIMITS.idle * 1000).is_empty());
        assert!(scene.has(job) && scene.has(busy));
    }

    #[test]
    fn remote_clients_are_distinguished_by_their_addresses() {
        let remote = |text: &str| Peer::remote(text.parse().expect("an address"));
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
                        let (id, displaced) = scene.places.admit(Peer::User(user), now);
                        prop_assert!(scene.has(id) && displaced.is_none_or(|gone| gone != id && !scene.has(gone)));
                    }
                    3 => scene.places.begin(id, now),
                    4 => scene.places.arrived(id, now),
                    5 => scene.places.stall(id, id % 2 == 0, now),
                    6 => scene.places.answered(id, now),
                    7 => scene.places.reported(id),
                    8 => scene.places.receive(id, now),
                    _ => scene.places.remove(id),
                }
                let places = &scene.places;
                prop_assert!(places.places.len() <= LIMITS.all);
                prop_assert!(places.pools.values().all(|pool| !pool.is_empty()));
                prop_assert_eq!(places.pools.values().map(BTreeSet::len).sum::<usize>(), places.places.len());
                for user in 0..3 {
                    let peer = Peer::User(user);
                    prop_assert!(places.of(peer) <= LIMITS.each);
                    prop_assert!(places.count(peer, Pool::Reports) <= LIMITS.each / 2);
                }
            }
        }
    }
}
