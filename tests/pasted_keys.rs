//! A key that somebody pasted where a name or a path belongs is not repeated.

use crate::support::{Ended, wattune};

#[test]
fn a_key_in_the_place_of_a_name_is_not_shown() {
    const KEY: &str = "sk-live-aB3dE5gH7jK9mN1pQ3";
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("wattune.toml");
    let maps = |key: &str| format!("source = \"electricity_maps\"\nzone = \"DE\"\n[carbon.electricity_maps]\n{key}\n");
    let watttime = |key: &str| format!("source = \"watttime\"\nzone = \"CAISO_NORTH\"\n[carbon.watttime]\n{key}\n");
    let table = [
        (maps(&format!("key_env = \"{KEY}\"")), "sk-l… (this looks like no variable's name"),
        (maps(&format!("key_file = \"{KEY}\"")), "sk-l… (this looks like no path"),
        (watttime(&format!("username_env = \"{KEY}\"")), "sk-l… (this looks like no variable's name"),
        (watttime(&format!("password_env = \"{KEY}\"")), "sk-l… (this looks like no variable's name"),
        (watttime(&format!("username_file = \"{KEY}\"")), "sk-l… (this looks like no path"),
        (watttime(&format!("password_file = \"{KEY}\"\nusername_env = \"PATH\"")), "sk-l… (this looks like no path"),
        (maps("key_env = \"WATTUNE_NO_KEY\""), "set the environment variable WATTUNE_NO_KEY, or"),
        (maps("key_file = \"/nowhere/key\""), "the key's file /nowhere/key cannot be read"),
    ];
    for (text, meant) in table {
        std::fs::write(&file, format!("[carbon]\n{text}")).expect("written");
        let (path, state) = (file.to_str().expect("UTF-8"), dir.path().join("state"));
        let arguments = ["--gpus", "simulated", "--config", path, "--listen", "127.0.0.1:0", "--state-dir"];
        let ended = Ended::of(wattune(&["doctor"]).args(arguments).arg(&state));
        assert!(ended.out.contains(meant), "{text}: {ended:?}");
        assert!(!ended.out.contains(KEY) && !ended.err.contains(KEY), "{text}: {ended:?}");
    }
}
