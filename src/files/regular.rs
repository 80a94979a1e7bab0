//! Reads files whose paths come from settings or from other users: only regular files, since reading a pipe or a device
//! may block or never end.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

/// Opens a regular file for reading. A pipe would wait for a writer, and a device may never end.
pub fn open(path: &Path) -> io::Result<File> {
    // Checked before the open, because opening a pipe already blocks.
    check(&fs::metadata(path)?)?;
    let file = File::open(path)?;
    check(&file.metadata()?)?;
    Ok(file)
}

/// Reads a regular file of at most `most` bytes.
pub fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path)?.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    match u64::try_from(bytes.len()).is_ok_and(|length| length <= most) {
        true => Ok(bytes),
        false => Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("it is longer than {most} bytes"))),
    }
}

/// Reads a regular file of at most `most` bytes as UTF-8 text.
pub fn read_text(path: &Path, most: u64) -> io::Result<String> {
    String::from_utf8(read(path, most)?).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

fn check(metadata: &fs::Metadata) -> io::Result<()> {
    let kind = metadata.file_type();
    let what = match () {
        () if kind.is_file() => return Ok(()),
        () if kind.is_dir() => "a directory",
        () if kind.is_fifo() => "a named pipe",
        () if kind.is_socket() => "a socket",
        () if kind.is_char_device() || kind.is_block_device() => "a device",
        () => "something else",
    };
    Err(io::Error::new(io::ErrorKind::InvalidInput, format!("it is {what}; name a regular file")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_are_read() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("a");
        fs::write(&path, "four").expect("written");
        assert_eq!(read_text(&path, 4).expect("it is short enough"), "four");
        assert!(read(&path, 3).expect_err("too long").to_string().contains("longer than 3 bytes"));
        assert_eq!(read(&dir.path().join("b"), 3).expect_err("absent").kind(), io::ErrorKind::NotFound);
        for (other, what) in [("/dev/zero", "a device"), ("/dev/null", "a device"), ("/", "a directory")] {
            let error = read(Path::new(other), 3).expect_err(other).to_string();
            assert!(error.contains(what) && error.contains("regular file"), "{error}");
        }
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&path, &link).expect("made");
        assert_eq!(read_text(&link, 4).expect("it leads to a file"), "four");
        fs::write(&path, [0xff]).expect("written");
        assert_eq!(read_text(&path, 4).expect_err("no text").kind(), io::ErrorKind::InvalidData);
    }
}
