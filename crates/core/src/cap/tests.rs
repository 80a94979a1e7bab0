//! Tests the allocation of a cap alone, and with simulated GPUs whose writes take time and may fail.

use proptest::prelude::*;

use super::*;

const fn w(watts: u32) -> PowerLimit {
    PowerLimit::from_milliwatts(watts * 1000)
}

fn request(in_force: u32, wanted: u32, purpose: LimitPurpose) -> LimitRequest {
    LimitRequest {
        in_force: w(in_force),
        wanted: w(wanted),
        floor: w(100),
        most: w(350),
        purpose,
        unyielding: false,
        unplanned: false,
    }
}

const fn cap(watts: u64) -> Option<u64> {
    Some(watts * 1000)
}

const fn grant(watts: u32, now: bool) -> LimitGrant {
    LimitGrant { limit: w(watts), now }
}

const JOB: LimitPurpose = LimitPurpose::Job { priority: 0 };

#[test]
fn a_raise_waits_until_the_lowering_is_read_back() {
    let mut gpus = [request(300, 200, JOB), request(200, 300, JOB)];
    assert_eq!(allocate(&gpus, cap(500)), [grant(200, true), grant(300, false)]);
    gpus[0].in_force = w(200);
    assert_eq!(allocate(&gpus, cap(500)), [grant(200, true), grant(300, true)]);
}

#[test]
fn gpus_without_a_job_bend_first_then_the_lowest_priority() {
    let jobs = [LimitPurpose::Job { priority: -1 }, LimitPurpose::Job { priority: 5 }];
    let gpus = [request(300, 300, jobs[1]), request(300, 300, LimitPurpose::Idle), request(300, 300, jobs[0])];
    let limits = |watts| allocate(&gpus, cap(watts)).into_iter().map(|p| p.limit).collect::<Vec<_>>();
    assert_eq!(limits(1000), [w(300), w(300), w(300)], "with both jobs at their most, 300 W are left");
    assert_eq!(limits(900), [w(300), w(200), w(300)]);
    assert_eq!(limits(700), [w(300), w(100), w(300)]);
    assert_eq!(limits(600), [w(300), w(100), w(200)]);
    assert_eq!(limits(450), [w(250), w(100), w(100)]);
    assert_eq!(limits(100), [w(100), w(100), w(100)], "no GPU goes below its lowest limit");
}

#[test]
fn equals_give_the_same_part() {
    let gpus = [request(300, 300, JOB), request(300, 200, JOB), request(300, 300, JOB)];
    let limits: Vec<_> = allocate(&gpus, cap(550)).into_iter().map(|p| p.limit).collect();
    assert_eq!(limits, [w(200), w(150), w(200)]);
}

#[test]
fn an_unplanned_limit_yields_to_its_equals_down_to_a_fair_share() {
    let upto_300 = |wanted, unplanned| LimitRequest { most: w(300), unplanned, ..request(100, wanted, JOB) };
    let limits = |wanted| {
        let grants = allocate(&[upto_300(300, true), upto_300(wanted, false)], cap(420));
        grants.into_iter().map(|p| p.limit).collect::<Vec<_>>()
    };
    assert_eq!(limits(300), [w(210), w(210)]);
    assert_eq!(limits(210), [w(210), w(210)], "whoever asks for no more than a fair share gets it");
    assert_eq!(limits(200), [w(220), w(200)]);
    assert_eq!(limits(100), [w(300), w(100)]);
}

#[test]
fn sweeps_of_one_priority_are_measured_one_after_the_other() {
    let sweep = |seniority| LimitPurpose::Sweep { priority: 0, seniority };
    let gpus = [request(100, 350, sweep(1)), request(100, 350, sweep(2)), request(200, 200, JOB)];
    let limits: Vec<_> = allocate(&gpus, cap(600)).into_iter().map(|p| p.limit).collect();
    assert_eq!(limits, [w(150), w(350), w(100)]);
}

#[test]
fn a_gpu_that_does_not_yield_is_reckoned_with_as_it_is() {
    let stuck = LimitRequest { unyielding: true, ..request(300, 200, JOB) };
    let gpus = [stuck, request(300, 300, JOB)];
    assert_eq!(allocate(&gpus, cap(500)), [grant(200, true), grant(200, true)]);
    let external = LimitRequest { purpose: LimitPurpose::Fixed, ..request(350, 350, JOB) };
    assert_eq!(allocate(&[external, request(300, 300, JOB)], cap(500))[1], grant(150, true));
}

#[test]
fn without_a_cap_everything_is_granted() {
    let gpus = [request(300, 200, JOB), request(200, 300, LimitPurpose::Idle)];
    assert_eq!(allocate(&gpus, None), [grant(200, true), grant(300, true)]);
}

fn claims() -> impl Strategy<Value = LimitPurpose> {
    prop_oneof![
        Just(LimitPurpose::Fixed),
        Just(LimitPurpose::Idle),
        (-2i32..3).prop_map(|priority| LimitPurpose::Job { priority }),
        (-2i32..3, 0i64..5).prop_map(|(priority, seniority)| LimitPurpose::Sweep { priority, seniority }),
        Just(LimitPurpose::Manual),
    ]
}

fn requests() -> impl Strategy<Value = Vec<LimitRequest>> {
    let flags = (any::<bool>(), any::<bool>());
    let one = (claims(), 50u32..200, 0u32..400_000, 0u32..400_000, 0u32..400_000, flags);
    let one = one.prop_map(|(purpose, floor, shown, wanted, most, (unyielding, unplanned))| {
        let above = |extra: u32| PowerLimit::from_milliwatts(floor * 1000 + extra);
        let in_force = above(shown);
        let wanted = if purpose == LimitPurpose::Fixed { in_force } else { above(wanted) };
        LimitRequest { in_force, wanted, floor: w(floor), most: above(most), purpose, unyielding, unplanned }
    });
    prop::collection::vec(one, 1..8)
}

proptest! {
    #[test]
    fn grants_fit_whatever_comes_of_them(requests in requests(), cap in 0u64..3_000_000) {
        let grants = allocate(&requests, Some(cap));
        let before: u64 = requests.iter().map(|s| mw(s.in_force)).sum();
        // The worst case: every write that is granted now has raised its limit, and no lowering has taken effect.
        let written = |(s, p): (&LimitRequest, &LimitGrant)| if p.now { mw(p.limit.max(s.in_force)) } else { mw(s.in_force) };
        let worst: u64 = requests.iter().zip(&grants).map(written).sum();
        prop_assert!(worst <= cap.max(before));
        for (request, grant) in requests.iter().zip(&grants) {
            prop_assert!(grant.limit <= request.wanted && grant.limit >= request.floor.min(request.wanted));
            prop_assert!(grant.now || grant.limit > request.in_force, "a lowering never waits");
        }
        // After all writes, the sum fits if it can, and a job is lowered only once jobs of lower priority are at their
        // lowest.
        let after = |s: &LimitRequest, p: &LimitGrant| if s.purpose == LimitPurpose::Fixed { mw(s.in_force) } else { mw(p.limit) };
        let sum: u64 = requests.iter().zip(&grants).map(|(s, p)| after(s, p)).sum();
        let least = |s: &LimitRequest| if s.purpose == LimitPurpose::Fixed { mw(s.in_force) } else { mw(s.floor) };
        let lowest: u64 = requests.iter().map(least).sum();
        prop_assert!(sum <= cap.max(lowest) , "{sum} {cap} {lowest}");
        let whole = 1000 * u64::try_from(requests.len()).expect("a few");
        for (a, pa) in requests.iter().zip(&grants) {
            for (b, pb) in requests.iter().zip(&grants) {
                let jobs = a.purpose > LimitPurpose::Idle && b.purpose > a.purpose && !a.unyielding && !b.unyielding;
                if jobs && requests.iter().all(|s| !s.unyielding) && pb.limit < b.wanted {
                    // Up to a watt per GPU may be left, because lowered limits are whole watts.
                    let left = mw(pa.limit) - mw(a.floor);
                    prop_assert!(left < whole, "the lower priority is at its lowest before the higher one bends: {left} mW");
                }
            }
        }
    }

    /// Simulates GPUs whose writes take up to `DELAY` steps, under caps that jump: if each cap is known `LEAD` steps
    /// ahead, the sum of limits never exceeds the cap after the first `LEAD` steps.
    #[test]
    fn the_sum_is_under_the_cap_at_every_instant(
        found in prop::collection::vec((100u32..400, 1u32..3), 2..6),
        caps in prop::collection::vec((5usize..40, 0u32..100), 1..8),
        wishes in prop::collection::vec((0usize..200, 0usize..6, 100u32..400, claims()), 0..60),
        delays in prop::collection::vec(1usize..=DELAY, 50),
        joins in 0usize..6,
    ) {
        let gpus: Vec<Fake> = found.iter().map(|(limit, _)| Fake::new(w(*limit), 0)).collect();
        run(gpus, &caps, &wishes, &delays, joins, |_| false)?;
    }

    /// Simulates the same GPUs with writes that fail at random: whatever fails, no raise makes the sum of limits exceed
    /// the cap.
    #[test]
    fn no_failure_makes_a_raise_break_the_cap(
        found in prop::collection::vec((100u32..400, 0u32..100), 2..6),
        caps in prop::collection::vec((5usize..40, 0u32..100), 1..8),
        wishes in prop::collection::vec((0usize..200, 0usize..6, 100u32..400, claims()), 0..60),
        delays in prop::collection::vec(1usize..=DELAY, 50),
        failures in prop::collection::vec(any::<bool>(), 50),
    ) {
        let gpus: Vec<Fake> = found.iter().map(|(limit, _)| Fake::new(w(*limit), 0)).collect();
        run(gpus, &caps, &wishes, &delays, 0, |n| failures[n % failures.len()])?;
    }
}

/// Maximum duration of a write, in steps.
const DELAY: usize = 4;
/// Lead, in steps, with which the allocation knows a cap: long enough for noticing the cap (one step), a write that was
/// under way, and the lowering write.
const LEAD: usize = 2 * DELAY + 2;

#[derive(Clone, Debug)]
struct Fake {
    limit: PowerLimit,
    in_flight: Option<(PowerLimit, usize, bool)>,
    failed: bool,
}

impl Fake {
    fn new(limit: PowerLimit, _from: usize) -> Self {
        Self { limit, in_flight: None, failed: false }
    }
}

fn run(
    mut gpus: Vec<Fake>,
    caps: &[(usize, u32)],
    wishes: &[(usize, usize, u32, LimitPurpose)],
    delays: &[usize],
    joins: usize,
    fails: impl Fn(usize) -> bool,
) -> Result<(), TestCaseError> {
    let floor: u64 = 100_000 * gpus.len() as u64;
    let most: u64 = 400_000 * gpus.len() as u64;
    // Caps between the sums of all GPUs' lowest and highest limits.
    let level = |part: u32| floor + (most - floor) * u64::from(part) / 100;
    let steps: Vec<u64> = caps.iter().flat_map(|(lasts, part)| vec![level(*part); *lasts]).collect();
    let cap_at = |t: usize| steps[t.min(steps.len() - 1)];
    let mut wanted: Vec<(PowerLimit, LimitPurpose)> = gpus.iter().map(|b| (b.limit, LimitPurpose::Idle)).collect();
    wanted[joins % gpus.len()] = (w(400), LimitPurpose::Sweep { priority: 0, seniority: 0 });
    let mut writes = 0;
    let mut failing = false;
    for t in 0..steps.len() + 20 {
        for &(_, gpu, watts, purpose) in wishes.iter().filter(|wish| wish.0 == t) {
            let purpose = if purpose == LimitPurpose::Fixed { LimitPurpose::Idle } else { purpose };
            let gpu = gpu % gpus.len();
            wanted[gpu] = (w(watts), purpose);
        }
        let before: u64 = gpus.iter().map(|b| mw(b.limit)).sum();
        for gpu in &mut gpus {
            if let Some((limit, at, fails)) = gpu.in_flight.filter(|(_, at, _)| *at <= t) {
                let _ = at;
                gpu.in_flight = None;
                gpu.failed = fails;
                failing |= fails;
                if !fails {
                    gpu.limit = limit;
                }
            }
        }
        let sum: u64 = gpus.iter().map(|b| mw(b.limit)).sum();
        if !failing && t > LEAD {
            prop_assert!(sum <= cap_at(t), "{sum} mW under {} mW at step {t}", cap_at(t));
        }
        if sum > before {
            prop_assert!(sum <= cap_at(t), "raised to {sum} mW under {} mW at step {t}", cap_at(t));
        }
        let least = (t..=t + LEAD).map(cap_at).min().unwrap_or(floor);
        let requests: Vec<LimitRequest> = gpus
            .iter()
            .zip(&wanted)
            .map(|(gpu, (wanted, purpose))| LimitRequest {
                in_force: gpu.in_flight.map_or(gpu.limit, |f| f.0.max(gpu.limit)),
                wanted: *wanted,
                floor: w(100),
                most: w(400),
                purpose: *purpose,
                unyielding: gpu.failed,
                unplanned: false,
            })
            .collect();
        for (gpu, grant) in gpus.iter_mut().zip(allocate(&requests, Some(least))) {
            if grant.now && gpu.in_flight.is_none() && grant.limit != gpu.limit {
                writes += 1;
                gpu.in_flight = Some((grant.limit, t + delays[writes % delays.len()], fails(writes)));
            }
        }
    }
    Ok(())
}
