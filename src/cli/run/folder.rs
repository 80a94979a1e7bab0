//! The private folder of one run: hooks for Python, the token of status posts, and the socket for progress messages.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use uuid::Uuid;

use super::environment::pid_namespace;
use crate::files;

/// Files for Python processes of the command, by their paths in the folder of hooks.
const HOOKS: [(&str, &str); 11] = [
    ("sitecustomize.py", include_str!("../../../clients/hooks/sitecustomize.py")),
    ("wattune_hook-1.0.dist-info/METADATA", include_str!("../../../clients/hooks/wattune_hook-1.0.dist-info/METADATA")),
    (
        "wattune_hook-1.0.dist-info/entry_points.txt",
        include_str!("../../../clients/hooks/wattune_hook-1.0.dist-info/entry_points.txt"),
    ),
    ("wattune_hook/__init__.py", include_str!("../../../clients/hooks/wattune_hook/__init__.py")),
    ("wattune_hook/factories.py", include_str!("../../../clients/hooks/wattune_hook/factories.py")),
    ("wattune_hook/keras.py", include_str!("../../../clients/hooks/wattune_hook/keras.py")),
    ("wattune_hook/lightning.py", include_str!("../../../clients/hooks/wattune_hook/lightning.py")),
    ("wattune_hook/optimizer.py", include_str!("../../../clients/hooks/wattune_hook/optimizer.py")),
    ("wattune_hook/pytorch_lightning.py", include_str!("../../../clients/hooks/wattune_hook/pytorch_lightning.py")),
    ("wattune_hook/report.py", include_str!("../../../clients/hooks/wattune_hook/report.py")),
    ("wattune_hook/trainer.py", include_str!("../../../clients/hooks/wattune_hook/trainer.py")),
];

const PREFIX: &str = "wattune-run";

/// Maximum length of a Unix socket's path on Linux.
const LONGEST_SOCKET_PATH: usize = 107;

/// Private folder of one run; dropping it removes the folder.
pub(super) struct RunFolder {
    path: PathBuf,
}

impl RunFolder {
    /// Creates the folder in the user's runtime directory, or without one in the directory for temporary files. Also
    /// removes the folders of this user's earlier runs that were killed.
    pub(super) fn create() -> io::Result<Self> {
        let mut failed = None;
        for place in places() {
            match Self::create_in(&place) {
                Ok(folder) => return Ok(folder),
                Err(error) => failed = Some(io::Error::new(error.kind(), format!("{}: {error}", place.display()))),
            }
        }
        Err(failed.unwrap_or_else(|| io::ErrorKind::NotFound.into()))
    }

    fn create_in(base: &Path) -> io::Result<Self> {
        remove_stale(base);
        let name = format!("{PREFIX}-{}-{}-{}", namespace(), std::process::id(), Uuid::new_v4().as_fields().0);
        let path = base.join(name);
        DirBuilder::new().mode(0o700).create(&path)?;
        let folder = Self { path };
        for (name, text) in HOOKS {
            let file = folder.hooks().join(name);
            fs::create_dir_all(file.parent().unwrap_or(&folder.path))?;
            write_private(&file, text)?;
        }
        Ok(folder)
    }

    /// Returns the folder with the hooks for Python, to be added to `PYTHONPATH`.
    pub(super) fn hooks(&self) -> PathBuf {
        self.path.join("python")
    }

    /// Returns the path of the socket for progress messages.
    pub(super) fn socket(&self) -> PathBuf {
        self.path.join("progress.sock")
    }

    /// Returns the path of the file with the id of the job that this run registered last.
    pub(super) fn job(&self) -> PathBuf {
        self.path.join("job")
    }

    /// Writes a new token for status posts to a file; returns the file's path and the token.
    pub(super) fn write_token(&self) -> io::Result<(PathBuf, String)> {
        let token = Uuid::new_v4().simple().to_string();
        let file = self.path.join("token");
        write_private(&file, &token)?;
        Ok((file, token))
    }
}

impl Drop for RunFolder {
    fn drop(&mut self) {
        // A process that outlives the command may still write its caches there.
        for _ in 0..3 {
            if fs::remove_dir_all(&self.path).is_ok() || !self.path.exists() {
                return;
            }
        }
    }
}

fn write_private(path: &Path, text: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())
}

/// Returns the directories in which the folder may be created, in order of preference. A socket's path must be short, and
/// `PYTHONPATH` separates folders by colons.
fn places() -> Vec<PathBuf> {
    let is_own = |path: &PathBuf| fs::metadata(path).is_ok_and(|dir| dir.is_dir() && dir.uid() == files::user());
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(is_own);
    let fits = |path: &PathBuf| {
        let bytes = path.as_os_str().as_encoded_bytes();
        path.is_absolute() && bytes.len() + 66 <= LONGEST_SOCKET_PATH && !bytes.contains(&b':')
    };
    runtime.into_iter().chain([std::env::temp_dir(), "/tmp".into()]).filter(fits).collect()
}

/// Returns the machine's boot and the namespace of process ids of this process, as part of a file name: processes of
/// another machine or container, which may share the directory, are unknown here.
fn namespace() -> String {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let boot: String = boot.chars().take_while(|c| *c != '-').collect();
    format!("{boot}.{}", pid_namespace().unwrap_or_default())
}

/// Removes the folders of this user's runs whose processes are gone.
fn remove_stale(base: &Path) {
    let beginning = format!("{PREFIX}-{}-", namespace());
    for entry in fs::read_dir(base).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.strip_prefix(&beginning)?.split('-').next()?.parse::<u32>().ok());
        let Some(pid) = pid else { continue };
        let is_own = entry.metadata().is_ok_and(|dir| dir.is_dir() && dir.uid() == files::user());
        if is_own && !Path::new(&format!("/proc/{pid}")).exists() {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_folder_is_private_and_leaves_nothing() {
        let folder = RunFolder::create().expect("created");
        let path = folder.path.clone();
        let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o777;
        assert_eq!(mode(&path), 0o700);
        let (file, token) = folder.write_token().expect("written");
        assert_eq!((mode(&file), fs::read_to_string(&file).expect("read")), (0o600, token.clone()));
        assert_eq!(token.len(), 32);
        assert!(folder.hooks().join("sitecustomize.py").is_file());
        assert!(folder.socket().as_os_str().len() <= LONGEST_SOCKET_PATH);
        drop(folder);
        assert!(!path.exists());
    }

    #[test]
    fn all_hooks_are_embedded() {
        fn collect(folder: &Path, into: &mut Vec<PathBuf>) {
            for entry in fs::read_dir(folder).expect("readable").flatten() {
                match entry.path() {
                    cache if cache.ends_with("__pycache__") => {}
                    inner if inner.is_dir() => collect(&inner, into),
                    file => into.push(file),
                }
            }
        }
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/hooks");
        let mut found = Vec::new();
        collect(&root, &mut found);
        found.sort();
        let mut embedded: Vec<PathBuf> = HOOKS.iter().map(|(name, _)| root.join(name)).collect();
        embedded.sort();
        assert_eq!(embedded, found);
    }

    #[test]
    fn folders_of_killed_runs_are_removed() {
        let base = tempfile::tempdir().expect("a directory");
        // No process has the highest id that Linux allows plus one.
        let named = |pid: u32| base.path().join(format!("{PREFIX}-{}-{pid}-0", namespace()));
        let (dead, alive) = (named(4_194_305), named(std::process::id()));
        let foreign = base.path().join(format!("{PREFIX}-1-4194305-0"));
        for path in [&dead, &alive, &foreign] {
            fs::create_dir(path).expect("created");
        }
        remove_stale(base.path());
        assert_eq!([dead.exists(), alive.exists(), foreign.exists()], [false, true, true]);
    }
}
