//! The join token: the secret that a front end and its nodes share, in a separate file.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use ropewalk_tls::SharedKey;
use zeroize::Zeroizing;

/// A false front end can test guesses offline, so the token has to be long.
const SHORTEST: usize = 32;
const LONGEST: u64 = 4096;

/// The reason why a join token cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    #[error("cannot read the join token {path}: {source}")]
    Read { path: PathBuf, source: io::Error },
    #[error("the join token {path} can be read by other users (mode {mode:04o}); `chmod 600` corrects it")]
    Mode { path: PathBuf, mode: u32 },
    #[error(
        "the join token {path} has {length} characters, and at least {SHORTEST} are needed: `openssl rand -hex 32 > FILE` makes one"
    )]
    Short { path: PathBuf, length: usize },
    #[error("OpenSSL cannot use the join token: {0}")]
    Key(String),
}

/// A join token, prepared for connections.
#[derive(Clone, Debug)]
pub struct JoinToken {
    key: SharedKey,
}

impl JoinToken {
    /// Reads the token from a file that only its owner can read. Surrounding white space is
    /// ignored.
    ///
    /// # Errors
    /// The file cannot be read, can be read by other users, or is too short for a secret.
    pub fn load(path: &Path) -> Result<Self, TokenError> {
        let read = |source| TokenError::Read { path: path.to_owned(), source };
        let file = ropewalk_files::open(path).map_err(read)?;
        let mode = file.metadata().map_err(read)?.mode() & 0o7777;
        if mode & 0o077 != 0 {
            return Err(TokenError::Mode { path: path.to_owned(), mode });
        }
        let text = Zeroizing::new(ropewalk_files::content_text(&file, LONGEST).map_err(read)?);
        let secret = text.trim();
        if secret.len() < SHORTEST {
            return Err(TokenError::Short { path: path.to_owned(), length: secret.len() });
        }
        Self::new(secret.as_bytes())
    }

    /// # Errors
    /// OpenSSL does not support TLS 1.3.
    pub fn new(secret: &[u8]) -> Result<Self, TokenError> {
        let key = SharedKey::new(secret, b"ropewalk join token");
        Ok(Self { key: key.map_err(|error| TokenError::Key(error.to_string()))? })
    }

    pub(crate) fn key(&self) -> &SharedKey {
        &self.key
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn token_of_others_or_too_short_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("token");
        let put = |text: &str, mode| {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            JoinToken::load(&path).map(drop).map_err(|error| error.to_string())
        };
        let long = "0123456789abcdef0123456789abcdef\n";
        assert_eq!(put(long, 0o600), Ok(()));
        assert!(put(long, 0o640).unwrap_err().contains("mode 0640"));
        assert!(put("0123456789abcdef0123456789abcde \n", 0o600).unwrap_err().contains("31 characters"));
        fs::remove_file(&path).unwrap();
        assert!(JoinToken::load(&path).unwrap_err().to_string().starts_with("cannot read the join token"));
    }
}
