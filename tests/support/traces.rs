//! The recorded grids and GPUs.

use std::path::{Path, PathBuf};

/// The recorded traces; `None` where they are not at hand and not required.
#[expect(clippy::print_stdout, reason = "a test that skips says so")]
pub(crate) fn traces() -> Option<PathBuf> {
    let named = std::env::var_os("WATTUNE_TRACES").map(PathBuf::from);
    // Beside the repository, in which this package may be a folder.
    let above = || Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().skip(1).map(|folder| folder.join("shared/data"));
    let usual = || above().find(|folder| folder.is_dir()).unwrap_or_else(|| "../shared/data".into());
    let folder = named.unwrap_or_else(usual);
    if folder.join("carbon").is_dir() {
        return Some(folder);
    }
    let required = std::env::var_os("WATTUNE_REQUIRE_TRACES").is_some_and(|v| v == "1");
    assert!(!required, "the traces are required and not at {}", folder.display());
    println!("skipped: no traces at {}; set WATTUNE_TRACES", folder.display());
    None
}
