//! Rights of the daemon after its start: few enough in every thread, and enough for its work.

use serde_json::json;

use crate::support::{Daemon, FakeDriver, LONG, eventually};

/// `CAP_DAC_READ_SEARCH`, `CAP_SYS_PTRACE` and `CAP_SYS_ADMIN` as the kernel's mask of bits.
const KEPT: u64 = 1 << 2 | 1 << 19 | 1 << 21;
/// `CAP_SETPCAP`, without which the bounding set cannot be changed.
const SETPCAP: u64 = 1 << 8;

/// A field of a `/proc/…/status` file.
fn field(status: &str, name: &str) -> String {
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("no {name} in {status}")).trim().to_owned()
}

fn mask(status: &str, name: &str) -> u64 {
    u64::from_str_radix(&field(status, name), 16).expect("hexadecimal")
}

#[tokio::test]
async fn every_thread_keeps_only_what_limits_energy_and_processes_need() {
    let own = std::fs::read_to_string("/proc/self/status").expect("readable");
    let driver = FakeDriver::new(&[json!({})]);
    let state = tempfile::tempdir().expect("a directory");
    let zone = state.path().join("powercap/intel-rapl:0");
    std::fs::create_dir_all(&zone).expect("made");
    for (file, text) in [("name", "package-0"), ("max_energy_range_uj", "262143328850"), ("energy_uj", "1000000")] {
        std::fs::write(zone.join(file), text).expect("written");
    }
    // As on a real machine, only its owner may read the counter.
    let private = std::os::unix::fs::PermissionsExt::from_mode(0o400);
    std::fs::set_permissions(zone.join("energy_uj"), private).expect("changed");
    let settings = format!("{}[cpu]\npowercap_root = {:?}\n", Daemon::QUICK, state.path().join("powercap"));
    let mut command = Daemon::command_set(&driver, state.path(), &settings);
    command.arg("--socket").arg(state.path().join("wattune.sock"));
    let daemon = Daemon::start(command, state.path()).await;
    daemon.hold(&driver, 0, 225.0).await;
    eventually("the energy of the CPU package", LONG, async || {
        let status = daemon.get("/v1/status").await.expect(200);
        (status["cpu"]["zones"][0]["problem"].is_null() && status["cpu"]["zones"][0]["kind"] == "package").then_some(())
    })
    .await;

    let threads = std::fs::read_dir(format!("/proc/{}/task", daemon.pid())).expect("readable");
    let statuses = threads.filter_map(|thread| std::fs::read_to_string(thread.ok()?.path().join("status")).ok());
    let statuses: Vec<String> = statuses.collect();
    assert!(statuses.len() > 5, "{} threads", statuses.len());
    for status in &statuses {
        let thread = field(status, "Name");
        for set in ["CapEff", "CapPrm"] {
            // The log's thread needs no rights at all.
            let expected = if thread == "log" { 0 } else { mask(&own, set) & KEPT };
            assert_eq!(mask(status, set), expected, "{set} of {thread}");
        }
        assert_eq!((mask(status, "CapInh"), mask(status, "CapAmb")), (0, 0), "{thread}");
        if mask(&own, "CapEff") & SETPCAP != 0 {
            assert_eq!(mask(status, "CapBnd") & !KEPT, 0, "CapBnd of {thread}");
        }
        assert_eq!(field(status, "NoNewPrivs"), "1", "{thread}");
    }
    assert!(daemon.stop("TERM").await.success());
    assert_eq!(driver.limits_written(0), [225.0, 300.0], "the limit is set and restored");
}
