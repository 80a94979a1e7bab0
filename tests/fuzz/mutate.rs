//! Gives mutated bodies to the parsers of all sources, counting time and memory; README.md beside this file says how.
#![allow(unsafe_code, reason = "an allocator that counts")]
#![allow(clippy::print_stdout, reason = "a program for a shell")]
#![allow(clippy::disallowed_methods, reason = "measures how long parsers take")]

mod bodies;
mod worst;

use std::alloc::{GlobalAlloc, Layout, System};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use wattune::providers::fuzz::{FuzzTarget, targets};

/// A parser may need this many times the length of a body at once …
const MOST_TIMES: usize = 128;
/// … and this much beside: borders of countries, mostly.
const MOST_BESIDE: usize = 4 << 20;
/// The longest that a body of 1 MiB may take.
const MOST_TIME: Duration = Duration::from_millis(200);

struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

fn taken(bytes: usize) {
    PEAK.fetch_max(LIVE.fetch_add(bytes, Relaxed) + bytes, Relaxed);
}

// SAFETY: hands everything on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        taken(layout.size());
        // SAFETY: the caller's layout.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller's pointer, which the system gave.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // Both may be there at once.
        taken(size);
        LIVE.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller's pointer and layout, which the system gave.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What a body cost.
struct Cost {
    time: Duration,
    peak: usize,
    left: usize,
}

/// How long this thread has had a processor, so that what else the machine does is left out; where Linux does not tell,
/// how long it has run.
fn busy() -> Duration {
    let reported = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let reported = reported.and_then(|text| text.split(' ').next()?.parse().ok().map(Duration::from_nanos));
    reported.unwrap_or_else(since_start)
}

fn since_start() -> Duration {
    static BEGUN: OnceLock<Instant> = OnceLock::new();
    BEGUN.get_or_init(Instant::now).elapsed()
}

/// Runs a source's parsers on a body; a panic leaves the body in a file.
fn cost(target: FuzzTarget, body: &[u8], clock: fn() -> Duration) -> Cost {
    let before = LIVE.load(Relaxed);
    PEAK.store(before, Relaxed);
    let begun = clock();
    let outcome = catch_unwind(AssertUnwindSafe(|| (target.parse)(body)));
    let (time, peak) = (clock().saturating_sub(begun), PEAK.load(Relaxed) - before);
    if outcome.is_err() {
        let path = std::env::temp_dir().join(format!("wattune-{}-{}", target.name, std::process::id()));
        std::fs::write(&path, body).expect("a place for the body");
        println!("PANIC in {}: the body is in {}", target.name, path.display());
        std::process::abort();
    }
    Cost { time, peak, left: LIVE.load(Relaxed).saturating_sub(before) }
}

fn allowed(length: usize) -> usize {
    MOST_TIMES * length + MOST_BESIDE
}

#[expect(clippy::cast_precision_loss, reason = "for people")]
fn times(peak: usize, length: usize) -> f64 {
    peak as f64 / length.max(1) as f64
}

/// Mutated bodies; the number of faults.
fn mutations(count: usize, seed: u64) -> usize {
    let targets = targets();
    let names: Vec<_> = targets.iter().map(|target| target.name).collect();
    let (seeds, mut dice) = (bodies::seeds(&names), bodies::Dice(seed));
    let (mut faults, mut total, mut longest, mut parsing) = (0, 0, 0, Duration::ZERO);
    let (mut steepest, mut highest, mut slowest, mut left) = (0.0f64, 0, Duration::ZERO, 0);
    let begun = Instant::now();
    for i in 0..count {
        // One of each source in turn, and now and then another's body.
        let (at, target) = (i % targets.len(), targets[i % targets.len()]);
        let own: Vec<_> =
            if i % 16 == 0 { seeds.iter().collect() } else { seeds.iter().filter(|s| s.target == at).collect() };
        let body = bodies::mutated(own[dice.below(own.len())], &seeds, &mut dice);
        let cost = cost(target, &body, since_start);
        if cost.peak > allowed(body.len()) {
            faults += 1;
            println!("FAULT: {} B for a body of {} B of {}", cost.peak, body.len(), target.name);
        }
        (total, longest) = (total + body.len(), longest.max(body.len()));
        (parsing, slowest) = (parsing + cost.time, slowest.max(cost.time));
        highest = highest.max(cost.peak);
        left += cost.left;
        if body.len() > 64 << 10 {
            steepest = steepest.max(times(cost.peak, body.len()));
        }
    }
    let took = begun.elapsed();
    println!(
        "{count} bodies (from {seed}) of {total} B in {:.1} s, {:.1} s of which in parsers: {:.0} bodies/s",
        took.as_secs_f64(),
        parsing.as_secs_f64(),
        times(count, 1) / took.as_secs_f64()
    );
    println!(
        "longest body {longest} B; slowest {:.1} ms; highest peak {highest} B; of bodies above 64 KiB at most {steepest:.1} \
         times the body; {left} B not given back",
        slowest.as_secs_f64() * 1e3
    );
    if left > MOST_BESIDE {
        println!("FAULT: memory is not given back");
        faults += 1;
    }
    faults
}

/// The worst bodies, each three times or more; the number of faults.
fn worst_bodies() -> usize {
    let mut faults = 0;
    println!("{:<18}{:>8}  {:<50}{:>8}  of bodies of at most {} B", "worst", "ms", "", "times", worst::LONGEST);
    for target in targets() {
        let (mut slowest, mut steepest) = ((Duration::ZERO, String::new()), (0.0f64, String::new()));
        for (name, body) in worst::bodies(target.name) {
            assert!(body.len() <= worst::LONGEST, "{name}: {}", body.len());
            let mut runs: Vec<_> = (0..3).map(|_| cost(target, &body, busy)).collect();
            if runs.iter().all(|c| c.time > MOST_TIME) {
                // A busy machine shares more than its processors.
                runs.extend((0..7).map(|_| cost(target, &body, busy)));
            }
            let time = runs.iter().map(|c| c.time).min().unwrap_or_default();
            let peak = runs.iter().map(|c| c.peak).max().unwrap_or_default();
            if time > MOST_TIME || peak > allowed(body.len()) {
                faults += 1;
                println!("FAULT: {}: {name}: {time:?}, {peak} B for {} B", target.name, body.len());
            }
            if time > slowest.0 {
                slowest = (time, name.clone());
            }
            if times(peak, body.len()) > steepest.0 {
                steepest = (times(peak, body.len()), name);
            }
        }
        let ms = slowest.0.as_secs_f64() * 1e3;
        println!("{:<18}{ms:>8.1}  {:<50}{:>8.1}  {}", target.name, slowest.1, steepest.0, steepest.1);
    }
    faults
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1).map(|argument| argument.replace('_', "").parse::<u64>());
    let count = arguments.next().unwrap_or(Ok(1_000_000)).ok().and_then(|n| usize::try_from(n).ok());
    let (Some(count), Ok(seed)) = (count, arguments.next().unwrap_or(Ok(1))) else {
        println!("usage: fuzz_parsers [NUMBER OF BODIES] [NUMBER TO BEGIN FROM]");
        return ExitCode::FAILURE;
    };
    let faults = worst_bodies() + mutations(count, seed);
    println!("{faults} faults");
    if faults == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
