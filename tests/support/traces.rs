//! The recorded grids and GPUs.

use std::path::{Path, PathBuf};

/// The recorded traces; `None` where they are not at hand and not required.
#[expect(clippy::print_stdout, reason = "a test that skips says so")]
pub(crate) fn traces() -> Option<PathBuf> {
    let named = std::env::var_os("WATTUNE_TRACES").map_or_else(|| PathBuf::from("../shared/data"), PathBuf::from);
    // A relative path begins at the repository, in which this package may be a folder.
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = package.ancestors().take(2).map(|folder| folder.join(&named)).find(|f| f.join("carbon").is_dir());
    if folder.is_some() {
        return folder;
    }
    let required = std::env::var_os("WATTUNE_REQUIRE_TRACES").is_some_and(|v| v == "1");
    assert!(!required, "the traces are required and not at {}", named.display());
    println!("skipped: no traces at {}; set WATTUNE_TRACES", named.display());
    None
}
