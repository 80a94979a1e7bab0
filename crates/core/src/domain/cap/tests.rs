//! Tests the schedule against its definition, second by second.

use chrono::{DateTime, Datelike, TimeDelta, Timelike, Utc, Weekday};
use proptest::prelude::*;

use super::*;
use crate::domain::{EventId, Rebound};
use crate::units::Seconds;

const BASELINE: Watts = Watts::new(1000.0);

/// Returns a time in seconds after midnight of a Monday.
fn t(seconds: i64) -> DateTime<Utc> {
    DateTime::from_timestamp(1_763_337_600 + seconds, 0).expect("in range")
}

fn slot(from: i64, to: i64) -> Slot {
    Slot::new(t(from), t(to)).expect("not empty")
}

fn event(
    from: i64,
    to: i64,
    target: Level,
    ramp: f64,
    notice: Option<f64>,
    rebound: Option<(f64, f64)>,
) -> DemandResponse {
    let rebound = rebound.map(|(w, s)| Rebound { level: Level::Watts(Watts::new(w)), lasts: Seconds::new(s) });
    let id = EventId::new("dr-1").expect("an id");
    let event = DemandResponse {
        id,
        slot: slot(from, to),
        target,
        notice: notice.map(Seconds::new),
        ramp: Seconds::new(ramp),
        rebound,
    };
    event.check().expect("right")
}

fn schedule(events: &[DemandResponse], now: i64) -> CapSchedule {
    CapSchedule::new(&ConfiguredCap::default(), events, BASELINE, t(now))
}

#[test]
fn an_event_ramps_holds_and_rebounds() {
    let event = event(100, 200, Level::Share(0.6), 20.0, Some(30.0), Some((800.0, 60.0)));
    let caps = schedule(std::slice::from_ref(&event), 80);
    let at = |s| caps.cap_at(t(s)).map(Watts::get);
    assert_eq!(at(79), None);
    assert_eq!(at(80), Some(1000.0));
    assert_eq!(at(90), Some(800.0));
    assert_eq!([at(100), at(150), at(199)], [Some(600.0); 3]);
    assert_eq!(at(200), Some(600.0));
    assert_eq!(at(205), Some(700.0));
    assert_eq!(at(215), Some(800.0), "the ramp is at 900 W, the rebound limit below it");
    assert_eq!(at(259), Some(800.0));
    assert_eq!(at(260), None);
    assert_eq!(caps.boundaries(t(0), t(300)), [80, 100, 200, 220, 260].map(t));
    assert_eq!(caps.over(&slot(0, 85)).map(Watts::get), Some(900.0));
    assert_eq!(caps.over(&slot(70, 80)), None);
    assert_eq!(caps.binding_at(t(215)).map(|b| b.1.clone()), Some(CapSource::Rebound(event.id.clone())));
    assert!(schedule(std::slice::from_ref(&event), 69).is_empty(), "31 s before it starts nobody knows of it");
    assert!(!schedule(std::slice::from_ref(&event), 70).is_empty());
    assert!(schedule(&[event], 260).is_empty(), "over");
}

#[test]
fn a_window_passes_midnight_on_the_days_on_which_it_begins() {
    let window = Window { days: vec![Weekday::Sun, Weekday::Mon], from: 79_200, to: 21_600, level: Level::Share(0.5) };
    let standing = ConfiguredCap { windows: vec![window], ..ConfiguredCap::default() };
    let caps = CapSchedule::new(&standing, &[], BASELINE, t(0));
    let at = |hour: i64| caps.cap_at(t(hour * 3600)).is_some();
    // Monday 0 h is in the window that began on Sunday; none begins on Tuesday night.
    assert_eq!([0, 5, 6, 21, 22, 29, 30, 46, 50].map(at), [true, true, false, false, true, true, false, false, false]);
    assert_eq!(caps.next_change(t(0)), Some(t(6 * 3600)));
    assert_eq!(caps.next_change(t(30 * 3600)), Some(t((6 * 24 + 22) * 3600)));
    assert_eq!(caps.over(&slot(0, 90 * 86_400)).map(Watts::get), Some(500.0));
}

#[test]
fn rules_that_never_bind_are_no_change() {
    let constant = ConfiguredCap { constant: Some(Level::Watts(Watts::new(500.0))), ..ConfiguredCap::default() };
    let weak = event(100, 200, Level::Watts(Watts::new(700.0)), 0.0, None, None);
    let caps = CapSchedule::new(&constant, &[weak], BASELINE, t(0));
    assert_eq!(caps.next_change(t(0)), None);
    assert_eq!(caps.binding_at(t(150)), Some((Watts::new(500.0), &CapSource::Constant)));
    assert_eq!(CapSchedule::default().next_change(t(0)), None);
}

#[test]
fn invalid_events_are_rejected_by_field() {
    let good = event(100, 200, Level::Share(0.6), 20.0, Some(30.0), None);
    let refused = |change: fn(&mut DemandResponse)| {
        let mut event = good.clone();
        change(&mut event);
        event.check().expect_err("wrong").field
    };
    assert_eq!(refused(|e| e.target = Level::Watts(Watts::ZERO)), "target_w");
    assert_eq!(refused(|e| e.target = Level::Share(1.2)), "target_pct");
    assert_eq!(refused(|e| e.ramp = Seconds::new(31.0)), "ramp_s");
    assert_eq!(refused(|e| e.ramp = Seconds::new(-1.0)), "ramp_s");
    assert_eq!(refused(|e| e.notice = Some(Seconds::new(-1.0))), "notice_s");
    assert_eq!(refused(|e| e.slot = Slot::new(t(0), t(32 * 86_400)).expect("a slot")), "end");
    let none = Rebound { level: Level::Share(1.0), lasts: Seconds::ZERO };
    assert_eq!(
        refused(|e| e.rebound = Some(Rebound { level: Level::Share(0.0), lasts: Seconds::new(1.0) })),
        "rebound_pct"
    );
    let mut event = good.clone();
    event.rebound = Some(none);
    assert_eq!(event.check().expect_err("wrong").field, "rebound_s");
}

#[test]
fn stored_events_are_read_again() {
    let event = event(100, 200, Level::Share(0.6), 20.0, Some(30.0), Some((800.0, 60.0)));
    let text = serde_json::to_string(&event).expect("serialises");
    assert_eq!(serde_json::from_str::<DemandResponse>(&text).expect("readable"), event);
}

fn levels() -> impl Strategy<Value = Level> {
    prop_oneof![
        (100.0..1200.0).prop_map(|w: f64| Level::Watts(Watts::new(w.round()))),
        (0.1..1.0).prop_map(Level::Share)
    ]
}

fn events() -> impl Strategy<Value = DemandResponse> {
    (0i64..3000, 1i64..2000, levels(), 0u32..300, prop::option::of((100.0..900.0, 1u32..600))).prop_map(
        |(from, lasts, target, ramp, rebound)| {
            event(from, from + lasts, target, f64::from(ramp), None, rebound.map(|(w, s)| (w, f64::from(s))))
        },
    )
}

fn windows() -> impl Strategy<Value = Window> {
    let days = prop::sample::subsequence(vec![Weekday::Mon, Weekday::Tue, Weekday::Sun], 0..3);
    (days, 0u32..86_400, 0u32..86_400, levels()).prop_map(|(days, from, to, level)| Window { days, from, to, level })
}

/// Returns true if a time is in a window, by an independent definition from the second of the day and the day before.
fn in_window(w: &Window, t: DateTime<Utc>) -> bool {
    let second = t.num_seconds_from_midnight();
    let on = |day: Weekday| w.days.is_empty() || w.days.contains(&day);
    let (today, yesterday) = (t.weekday(), t.weekday().pred());
    if w.from < w.to {
        on(today) && (w.from..w.to).contains(&second)
    } else {
        on(today) && second >= w.from || on(yesterday) && second < w.to
    }
}

proptest! {
    #[test]
    fn the_cap_is_the_strictest_rule_at_every_second(
        constant in prop::option::of(levels()),
        windows in prop::collection::vec(windows(), 0..3),
        events in prop::collection::vec(events(), 0..4),
        offset in 0i64..(3 * 86_400),
        seconds in prop::collection::vec(0i64..6000, 1..40),
    ) {
        let standing = ConfiguredCap { constant, windows, spans: Vec::new() };
        let caps = CapSchedule::new(&standing, &events, BASELINE, t(-100_000));
        for second in seconds {
            for at in [t(second), t(second + offset)] {
                let mut least = f64::INFINITY;
                least = constant.map_or(least, |l| least.min(l.of(BASELINE).get()));
                for w in standing.windows.iter().filter(|w| in_window(w, at)) {
                    least = least.min(w.level.of(BASELINE).get());
                }
                for e in &events {
                    let (start, end, target) = (e.slot.start(), e.slot.end(), e.target.of(BASELINE).get());
                    let ramp = e.ramp.get();
                    let to_start = (start - at).as_seconds_f64();
                    let from_end = (at - end).as_seconds_f64();
                    let from_target = if to_start > 0.0 { to_start } else { from_end.max(0.0) };
                    let ramping = target < 1000.0 && (to_start <= ramp) && (from_end < ramp);
                    if e.slot.contains(at) {
                        least = least.min(target);
                    } else if ramping {
                        least = least.min(target + (1000.0 - target) * from_target / ramp);
                    }
                    if let Some(r) = e.rebound && from_end >= 0.0 && from_end < r.lasts.get() {
                        least = least.min(r.level.of(BASELINE).get());
                    }
                }
                match caps.cap_at(at) {
                    Some(cap) => prop_assert!((cap.get() - least).abs() < 1e-6 || least >= 1000.0, "{cap} {least} {at}"),
                    None => prop_assert!(least >= 1000.0, "{least} at {at}"),
                }
            }
        }
    }

    #[test]
    fn the_cap_within_a_slot_is_never_below_the_slots_minimum(
        windows in prop::collection::vec(windows(), 0..3),
        events in prop::collection::vec(events(), 1..4),
        from in 0i64..6000,
        lasts in 1i64..4000,
    ) {
        let standing = ConfiguredCap { windows, ..ConfiguredCap::default() };
        let caps = CapSchedule::new(&standing, &events, BASELINE, t(-100_000));
        let whole = slot(from, from + lasts);
        let over = caps.over(&whole);
        let least = (0..lasts).filter_map(|s| caps.cap_at(t(from + s))).reduce(Watts::min);
        match (over, least) {
            (None, None) => {}
            (Some(over), Some(least)) => prop_assert!(over <= least, "{over} {least}"),
            (Some(_), None) | (None, Some(_)) => prop_assert!(false, "{over:?} {least:?}"),
        }
        // Between two boundaries, the lowest cap is at one of the two ends.
        let mut cuts = vec![whole.start()];
        cuts.extend(caps.boundaries(whole.start(), whole.end()));
        cuts.push(whole.end());
        let parts = cuts.windows(2).filter_map(|w| Slot::new(w[0], w[1]));
        let parts: Vec<_> = parts.map(|p| (p, caps.over(&p))).collect();
        prop_assert_eq!(parts.iter().filter_map(|p| p.1).reduce(Watts::min), over);
        for (part, cap) in parts {
            let (first, last) = (caps.cap_at(part.start()), caps.cap_at(part.end() - TimeDelta::microseconds(1)));
            prop_assert_eq!(first.is_some(), cap.is_some());
            if let (Some(first), Some(last), Some(cap)) = (first, last, cap) {
                prop_assert!((first.min(last) - cap).abs() < Watts::new(0.01), "{} {} {}", first, last, cap);
            }
        }
        // Until the next change, the cap is constant or linear, so its lowest value is at one of the two ends.
        if let Some(next) = caps.next_change(whole.start()) {
            prop_assert!(next > whole.start());
            let until = Slot::new(whole.start(), next).expect("later");
            let ends = [whole.start(), next - TimeDelta::microseconds(1)].map(|t| caps.cap_at(t));
            let lowest = caps.over(&until);
            prop_assert_eq!(ends[0].is_some(), lowest.is_some());
            if let ([Some(first), Some(last)], Some(lowest)) = (ends, lowest) {
                prop_assert!((first.min(last) - lowest).abs() < Watts::new(0.01), "{} {} {}", first, last, lowest);
            }
        }
    }
}
