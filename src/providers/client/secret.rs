//! Keys and passwords, read from their file or environment variable at each use and never shown.

use std::fmt;
use std::path::Path;

use super::abridged;
use crate::providers::error::ProviderError;

const MAX_BYTES: u64 = 64 << 10;

/// A key, password or user name, which is sent to its source and never shown.
#[derive(Clone, PartialEq, Eq)]
pub(in crate::providers) struct Secret(String);

impl Secret {
    /// Returns the secret's text, for a request.
    pub(in crate::providers) fn expose(&self) -> &str {
        &self.0
    }

    /// Reads the file if one is set, else the environment variable; `None` if the text is empty or blank.
    ///
    /// # Errors
    /// If the file is set and cannot be read, or if the text has several lines or control characters.
    pub(in crate::providers) fn find(variable: &str, file: Option<&Path>) -> Result<Option<Self>, ProviderError> {
        let text = match file {
            Some(path) => read(path)?,
            None => std::env::var_os(variable).map(|v| v.to_string_lossy().into_owned()).unwrap_or_default(),
        };
        let text = text.trim();
        if text.chars().any(char::is_control) {
            let from = file.map_or_else(|| format!("the variable {}", abridged::variable(variable)), abridged::path);
            let what = format!("{from} holds more than one line, or control characters; put the key alone there");
            return Err(ProviderError::NoKey { what });
        }
        Ok((!text.is_empty()).then(|| Self(text.to_owned())))
    }

    /// Returns true if a file is set, or if the variable holds a secret; the file is not read.
    pub(in crate::providers) fn is_there(variable: &str, file: Option<&Path>) -> bool {
        file.is_some() || matches!(Self::find(variable, None), Ok(Some(_)))
    }
}

fn read(path: &Path) -> Result<String, ProviderError> {
    use std::io::Read;
    let unreadable = |error: std::io::Error| ProviderError::NoKey {
        what: format!(
            "the key's file {} cannot be read ({error}); check the path and its permissions",
            abridged::path(path)
        ),
    };
    let mut text = String::new();
    crate::files::regular::open(path)
        .map_err(unreadable)?
        .take(MAX_BYTES)
        .read_to_string(&mut text)
        .map_err(unreadable)?;
    Ok(text)
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_read_from_its_file_and_never_shown() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let found = |text: &str| {
            std::fs::write(file.path(), text).expect("written");
            Secret::find("WATTUNE_NO_SUCH_VARIABLE", Some(file.path()))
        };
        let secret = found(" s3cret\n").expect("readable").expect("there");
        assert_eq!(secret.expose(), "s3cret");
        assert!(!format!("{secret:?}").contains("s3cret"));
        assert_eq!(found("  \n"), Ok(None));
        let two = found("s3cret\nother").expect_err("two lines").to_string();
        assert!(two.contains("more than one line") && !two.contains("s3cret"), "{two}");
        assert_eq!(Secret::find("WATTUNE_NO_SUCH_VARIABLE", None), Ok(None));
        let missing = Secret::find("X", Some(Path::new("/nowhere/key"))).expect_err("missing").to_string();
        assert!(missing.contains("/nowhere/key") && missing.contains("permissions"), "{missing}");
    }
}
