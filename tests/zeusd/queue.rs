//! Writes that wait for a GPU: their order, which of them are done, and what becomes of the others.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use futures_util::future::join_all;
use serde_json::{Value, json};
use wattune::store::{AuditQuery, Store};

use super::overrides::{LIMIT, records, records_of_clients, text};
use super::{exchange, start};
use crate::support::{Daemon, FakeDriver, LONG, eventually};

const SET: &str = "nvmlDeviceSetPowerManagementLimit";

#[tokio::test]
async fn writes_that_the_daemons_end_keeps_from_beginning_are_recorded() {
    let (driver, state) = (FakeDriver::new(&[json!({})]), tempfile::tempdir().expect("a directory"));
    let daemon = start(&driver, state.path(), "").await;
    driver.set(0, json!({"slow_ms": 2000, "slow_calls": [SET]}));
    // The library looks at what it shall do at most every 5 ms.
    tokio::time::sleep(Duration::from_millis(100)).await;
    for watts in [210, 220, 230] {
        let path = format!("/gpu/set_power_limit?gpu_ids=0&block=false&power_limit_mw={watts}000");
        assert_eq!(exchange(&daemon, "POST", &path).await.0, 200);
    }
    assert!(daemon.stop("TERM").await.success());
    assert_eq!(driver.limit_w(0), Some(300.0));
    let query = AuditQuery { after: None, limit: 1000, gpu: None, job: None, since: None };
    let page = Store::open_read_only(state.path()).await.expect("opens").audit().page(query).await.expect("read");
    let failed = page.records.iter().filter(|(_, r)| r.who.starts_with("Zeus client"));
    let failed: Vec<_> =
        failed.map(|(_, r)| (r.after.as_ref().and_then(|s| s.power_limit_w), r.reason.clone())).collect();
    let why = Some("the daemon ended before the write began; nothing was changed".to_owned());
    let begun = Some("it is unknown whether the setting was written; read it back before you try again".to_owned());
    assert_eq!(failed, [(Some(210.0), begun), (Some(220.0), why.clone()), (Some(230.0), why)]);
}

#[tokio::test]
async fn writes_to_a_gpu_keep_their_order_and_one_whose_client_gave_up_before_it_began_is_not_done() {
    let (driver, state) = (FakeDriver::new(&[json!({})]), tempfile::tempdir().expect("a directory"));
    let daemon = start(&driver, state.path(), "[http]\nloopback_control = true\nrequest_timeout_s = 3\n").await;
    let set = async |watts: u32, block: bool| {
        let path = format!("/gpu/set_power_limit?gpu_ids=0&power_limit_mw={}&block={block}", watts * 1000);
        let (status, _, body) = exchange(&daemon, "POST", &path).await;
        (status, body)
    };
    for (watts, block) in [(150, false), (160, false), (170, false), (180, true)] {
        assert_eq!(set(watts, block).await, (200, String::new()));
    }
    assert_eq!(driver.limits_written(0), [150.0, 160.0, 170.0, 180.0]);
    // Eight at the same time: each is done, and the last one stays.
    let answers = join_all((200..208).map(|watts| set(watts, true))).await;
    assert!(answers.iter().all(|answer| *answer == (200, String::new())), "{answers:?}");
    let written = driver.limits_written(0).split_off(4);
    let mut sorted = written.clone();
    sorted.sort_by(f64::total_cmp);
    assert_eq!(sorted, (200..208).map(f64::from).collect::<Vec<_>>());
    assert_eq!(driver.limit_w(0), written.last().copied());
    // The driver takes longer than the clients wait, so only one of the two writes begins in time.
    driver.set(0, json!({"slow_ms": 8000, "slow_calls": [SET]}));
    // The library looks at what it shall do at most every 5 ms.
    tokio::time::sleep(Duration::from_millis(100)).await;
    let timed_out = (500, json!({"errors": {"0": "NVML error: the provided timeout was reached"}}).to_string());
    assert_eq!(join_all([set(220, true), set(230, true)]).await, [timed_out.clone(), timed_out]);
    eventually("the write that began", LONG, async || (driver.limits_written(0).len() == 13).then_some(())).await;
    driver.set(0, json!({"slow_ms": 0}));
    // The slow call may take longer than this client waits, too.
    let later = async || (set(240, true).await == (200, String::new())).then_some(());
    eventually("a later write", LONG, later).await;
    let written = driver.limits_written(0).split_off(12);
    assert!(written == [220.0, 240.0] || written == [230.0, 240.0], "{written:?}");
}

/// Starts a daemon whose driver takes `slow_ms` for each write of a limit.
async fn start_slow(driver: &FakeDriver, state: &Path, more: &str, script: Value) -> Daemon {
    let daemon = start(driver, state, &format!("[http]\nloopback_control = true\n{more}")).await;
    driver.set(0, script);
    // The library looks at what it shall do at most every 5 ms.
    tokio::time::sleep(Duration::from_millis(100)).await;
    daemon
}

/// Writes of so many limits from 200 W on, all at the same time, and their answers.
async fn write_at_once(daemon: &Daemon, count: u32, block: bool) -> Vec<(u16, String)> {
    let set = async |watts: u32| {
        let path = format!("/gpu/set_power_limit?gpu_ids=0&power_limit_mw={watts}000&block={block}");
        let (status, _, body) = exchange(daemon, "POST", &path).await;
        (status, body)
    };
    join_all((200..200 + count).map(set)).await
}

#[tokio::test]
async fn if_many_writes_wait_for_a_gpu_later_limits_replace_the_oldest() {
    let (driver, state) = (FakeDriver::new(&[json!({})]), tempfile::tempdir().expect("a directory"));
    let script = json!({"slow_ms": 500, "slow_calls": [SET]});
    let daemon = start_slow(&driver, state.path(), "request_timeout_s = 60\n", script).await;
    let below_the_range = format!("{LIMIT}=50000");
    let invalid = exchange(&daemon, "POST", &below_the_range);
    let (answers, (status, ..)) = tokio::join!(write_at_once(&daemon, 40, true), invalid);
    assert!(answers.iter().all(|answer| *answer == (200, String::new())), "{answers:?}");
    assert_eq!(status, 400);
    let socket = state.path().join("zeusd.sock");
    let records = eventually("all records", LONG, async || {
        Some(records_of_clients(&socket).await).filter(|records| records.len() == 41)
    })
    .await;
    // Those that came before the others, and up to eight of the last ones.
    let written = driver.limits_written(0);
    assert!((8..20).contains(&written.len()), "{written:?}");
    assert_eq!(driver.limit_w(0), written.last().copied());
    let with = |outcome: &str| records.iter().filter(|r| r["outcome"] == outcome).collect::<Vec<_>>();
    let watts = |state: &Value| state["power_limit_w"].as_f64().expect("a limit");
    assert_eq!(with("enforced").iter().map(|r| watts(&r["after"])).collect::<Vec<_>>(), written);
    assert_eq!((with("not_enforced").len(), with("refused").len()), (40 - written.len(), 1));
    for record in with("not_enforced") {
        let reason = text(&record["reason"]);
        assert!(
            reason.ends_with(" W was requested; a later request changed the limit before that was written"),
            "{reason}"
        );
        // The limit in force when it was replaced, and the one that was written in its place.
        let in_a_row = written.windows(2).any(|two| two == [watts(&record["before"]), watts(&record["after"])]);
        assert!(in_a_row, "{record} of {written:?}");
    }
}

#[tokio::test]
async fn writes_are_not_replaced_by_one_that_fails() {
    let (driver, state) = (FakeDriver::new(&[json!({})]), tempfile::tempdir().expect("a directory"));
    let script = json!({"slow_ms": 200, "slow_calls": [SET], "fail_calls": {SET: 999}});
    let daemon = start_slow(&driver, state.path(), "", script).await;
    let answers = write_at_once(&daemon, 14, true).await;
    assert!(answers.iter().all(|(status, _)| *status == 500), "{answers:?}");
    let tried: BTreeSet<String> = driver.writes().into_iter().filter(|w| w.call == SET).map(|w| w.argument).collect();
    assert_eq!(tried.len(), 14, "{tried:#?}");
    assert_eq!(driver.limit_w(0), Some(300.0));
}

#[tokio::test]
async fn replaced_writes_whose_clients_gave_up_or_that_the_daemons_end_meets_are_recorded_as_not_done() {
    let gave_up = "the writes before it took too long; nothing was changed";
    let ended = "the daemon ended before the write began; nothing was changed";
    for (block, reason) in [(true, gave_up), (false, ended)] {
        let (driver, state) = (FakeDriver::new(&[json!({})]), tempfile::tempdir().expect("a directory"));
        let script = json!({"slow_ms": 2000, "slow_calls": [SET]});
        let daemon = start_slow(&driver, state.path(), "request_timeout_s = 3\n", script).await;
        let answers = write_at_once(&daemon, 13, block).await;
        // Without `block`, the first write has not ended yet.
        eventually("the first write", LONG, async || (!driver.limits_written(0).is_empty()).then_some(())).await;
        if block {
            assert_eq!(answers.iter().filter(|(status, _)| *status == 500).count(), 12, "{answers:?}");
            eventually("the write that replaces others", LONG, async || {
                (driver.limits_written(0).len() == 2).then_some(())
            })
            .await;
        } else {
            assert!(daemon.stop("TERM").await.success());
        }
        let query = AuditQuery { after: None, limit: 1000, gpu: None, job: None, since: None };
        let page = async || {
            let store = Store::open_read_only(state.path()).await.expect("opens");
            store.audit().page(query.clone()).await.expect("read").records
        };
        eventually("all records", LONG, async || {
            let records = page().await;
            (records.iter().filter(|(_, r)| r.reason.as_deref() == Some(reason)).count() >= 11).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn a_client_gets_its_answer_once_the_driver_has_accepted_and_the_record_follows_the_reading() {
    let (driver, state) = (FakeDriver::new(&[json!({})]), tempfile::tempdir().expect("a directory"));
    let script = json!({"slow_ms": 2000, "slow_calls": ["nvmlDeviceGetEnforcedPowerLimit"]});
    let daemon = start_slow(&driver, state.path(), "", script).await;
    assert_eq!(exchange(&daemon, "POST", &format!("{LIMIT}=200000")).await.0, 200);
    assert_eq!(driver.limits_written(0), [200.0]);
    let socket = state.path().join("zeusd.sock");
    assert!(records(&socket).await.is_empty());
    eventually("the record", LONG, async || {
        (records(&socket).await == [(200.0, "enforced".to_owned(), String::new())]).then_some(())
    })
    .await;
}
