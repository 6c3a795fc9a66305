//! Finds the token of the user who runs a program (WLCG Bearer Token Discovery 1.0).
//!
//! A token file must belong to the user or root, and no other user may have access to it. A token
//! that the user named explicitly must be usable; the search does not continue after an error.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use ropewalk_files::NotRegular;
use zeroize::Zeroizing;

use crate::secret::{InvalidToken, LONGEST_TOKEN, Token};

/// Maximum amount of white space around a token in a file, in bytes.
const MARGIN: usize = 4096;

/// Why no token was found although one was named or exists.
#[derive(Debug, thiserror::Error)]
pub enum FindError {
    #[error("BEARER_TOKEN is no token: {0}")]
    Variable(InvalidToken),
    #[error("token file {path}: {source}")]
    Open { path: PathBuf, source: io::Error },
    #[error("token file {path} is no regular file")]
    Kind { path: PathBuf },
    #[error("token file {path} belongs to another user (number {owner})")]
    Owner { path: PathBuf, owner: u32 },
    #[error("token file {path} may be used by others (mode {mode:04o}); chmod 600 it")]
    Permissions { path: PathBuf, mode: u32 },
    #[error("token file {path}: {source}")]
    Content { path: PathBuf, source: InvalidToken },
}

/// Searches the environment of this process and the well-known files of its user.
///
/// # Errors
/// As [`in_places`].
pub fn of_process() -> Result<Option<Token>, FindError> {
    in_places(&|name| std::env::var_os(name), rustix::process::geteuid().as_raw(), Path::new("/tmp"))
}

/// Searches `BEARER_TOKEN`, the file named by `BEARER_TOKEN_FILE`, `$XDG_RUNTIME_DIR/bt_uUID` and
/// `/tmp/bt_uUID`, in this order, and returns the first token. A place that contains only white
/// space is skipped.
///
/// # Errors
/// A place contains something that is not a token, a file belongs to another user or others have
/// access to it, or the named file is missing. The search stops then: either the user meant this
/// token, or another user placed a token for us to use.
pub fn in_places(
    variable: &dyn Fn(&str) -> Option<OsString>,
    user: u32,
    temporary: &Path,
) -> Result<Option<Token>, FindError> {
    let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
    if let Some(text) = variable("BEARER_TOKEN") {
        let text = Zeroizing::new(text.as_bytes().to_vec());
        match Token::new(&text) {
            Err(InvalidToken::Empty) => {}
            found => return found.map(Some).map_err(FindError::Variable),
        }
    }
    if let Some(path) = variable("BEARER_TOKEN_FILE") {
        match read(Path::new(&path)) {
            Err(FindError::Content { source: InvalidToken::Empty, .. }) => {}
            found => return found.map(Some),
        }
    }
    let name = format!("bt_u{user}");
    let directories =
        variable("XDG_RUNTIME_DIR").map(PathBuf::from).into_iter().chain([temporary.to_owned()]);
    for path in directories.map(|directory| directory.join(&name)) {
        // Do not follow links: any user can put a link into /tmp.
        match read_as(&path, user, ropewalk_files::open_no_link) {
            Err(FindError::Open { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
            Err(FindError::Content { source: InvalidToken::Empty, .. }) => {}
            found => return found.map(Some),
        }
    }
    Ok(None)
}

/// Reads the token in a file that the user named.
///
/// # Errors
/// The file cannot be read, contains no token, belongs to another user (other than root), or others
/// have access to it.
pub fn read(path: &Path) -> Result<Token, FindError> {
    read_as(path, rustix::process::geteuid().as_raw(), ropewalk_files::open)
}

fn read_as(path: &Path, user: u32, opened: fn(&Path) -> io::Result<File>) -> Result<Token, FindError> {
    let path_buf = || path.to_owned();
    let open = |source: io::Error| FindError::Open { path: path_buf(), source };
    let mut file = opened(path).map_err(|error| match NotRegular::is_in(&error) {
        true => FindError::Kind { path: path_buf() },
        false => open(error),
    })?;
    // Check the open file, because its name may refer to another file by now.
    let stat = rustix::fs::fstat(&file).map_err(|e| open(e.into()))?;
    if stat.st_uid != user && stat.st_uid != 0 {
        return Err(FindError::Owner { path: path_buf(), owner: stat.st_uid });
    }
    let mode = stat.st_mode & 0o7777;
    if mode & 0o077 != 0 {
        return Err(FindError::Permissions { path: path_buf(), mode });
    }
    // Allocate the full size at once: a vector that grows leaves copies of the token in memory.
    let most = LONGEST_TOKEN + MARGIN;
    let mut text = Zeroizing::new(vec![0; most + 1]);
    let mut length = 0;
    while length < text.len() {
        match file.read(&mut text[length..]) {
            Ok(0) => break,
            Ok(n) => length += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(open(e)),
        }
    }
    Token::new(&text[..length]).map_err(|source| FindError::Content { path: path_buf(), source })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    struct Home {
        directory: tempfile::TempDir,
        user: u32,
    }

    impl Home {
        fn new() -> Self {
            Self { directory: tempfile::tempdir().unwrap(), user: rustix::process::geteuid().as_raw() }
        }

        fn path(&self, name: &str) -> PathBuf {
            self.directory.path().join(name)
        }

        fn put(&self, name: &str, text: &str, mode: u32) -> PathBuf {
            let path = self.path(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            path
        }

        fn find(&self, variables: &[(&str, &Path)]) -> Result<Option<String>, String> {
            let variable = |name: &str| {
                variables
                    .iter()
                    .find(|(known, _)| *known == name)
                    .map(|(_, value)| value.as_os_str().to_owned())
            };
            let found = in_places(&variable, self.user, &self.path("tmp")).map_err(|e| e.to_string())?;
            Ok(found.map(|token| String::from_utf8(token.expose().to_vec()).unwrap()))
        }
    }

    #[test]
    fn in_places_several_tokens_returns_first() {
        let home = Home::new();
        let well_known = format!("bt_u{}", home.user);
        assert_eq!(home.find(&[]), Ok(None));
        home.put(&format!("tmp/{well_known}"), "four\n", 0o600);
        assert_eq!(home.find(&[]), Ok(Some("four".into())));
        let run = home.path("run");
        assert_eq!(home.find(&[("XDG_RUNTIME_DIR", &run)]), Ok(Some("four".into())));
        home.put(&format!("run/{well_known}"), " three \n", 0o400);
        let file = home.put("file", "two", 0o600);
        let mut variables = vec![("XDG_RUNTIME_DIR", run.as_path())];
        assert_eq!(home.find(&variables), Ok(Some("three".into())));
        variables.push(("BEARER_TOKEN_FILE", &file));
        assert_eq!(home.find(&variables), Ok(Some("two".into())));
        variables.push(("BEARER_TOKEN", Path::new("one\n")));
        assert_eq!(home.find(&variables), Ok(Some("one".into())));
    }

    #[test]
    fn in_places_empty_place_is_skipped() {
        let home = Home::new();
        let well_known = format!("bt_u{}", home.user);
        home.put(&format!("tmp/{well_known}"), "\x0bfour\x0c", 0o600);
        let run = home.path("run");
        home.put(&format!("run/{well_known}"), "\n", 0o600);
        let file = home.put("file", "", 0o600);
        let variables = [
            ("XDG_RUNTIME_DIR", run.as_path()),
            ("BEARER_TOKEN_FILE", &file),
            ("BEARER_TOKEN", Path::new(" \t\n")),
        ];
        assert_eq!(home.find(&variables), Ok(Some("four".into())));
        home.put(&format!("tmp/{well_known}"), " \n ", 0o600);
        assert_eq!(home.find(&variables), Ok(None));
        assert!(read(&file).unwrap_err().to_string().contains("nothing"), "who names a file wants its token");
    }

    #[test]
    fn in_places_unusable_token_fails() {
        let home = Home::new();
        home.put(&format!("tmp/bt_u{}", home.user), "four", 0o600);
        let missing = home.path("missing");
        assert!(home.find(&[("BEARER_TOKEN_FILE", &missing)]).unwrap_err().contains("missing"));
        let error = home.find(&[("BEARER_TOKEN", Path::new("secret text"))]).unwrap_err();
        assert!(error.contains("other characters") && !error.contains("secret"), "{error}");
        assert_eq!(home.find(&[("BEARER_TOKEN", Path::new(""))]), Ok(Some("four".into())));
    }

    #[test]
    fn read_file_open_to_others_fails() {
        let home = Home::new();
        for mode in [0o644, 0o640, 0o604, 0o620, 0o666] {
            let file = home.put("file", "token", mode);
            assert!(
                home.find(&[("BEARER_TOKEN_FILE", &file)]).unwrap_err().contains("chmod 600"),
                "{mode:o}"
            );
        }
        let other = Home { directory: tempfile::tempdir().unwrap(), user: home.user + 1 };
        let name = format!("tmp/bt_u{}", other.user);
        let file = other.put(&name, "token", 0o600);
        // Files of root are accepted for all users.
        if home.user != 0 {
            assert!(other.find(&[]).unwrap_err().contains("another user"));
        }
        std::fs::remove_file(&file).unwrap();
        let target = other.put("target", "token", 0o600);
        symlink(&target, &file).unwrap();
        assert!(other.find(&[]).is_err());
        std::fs::remove_file(&file).unwrap();
        std::fs::create_dir(&file).unwrap();
        assert!(other.find(&[]).unwrap_err().contains("no regular file"));
    }

    #[test]
    fn read_file_without_token_fails() {
        let home = Home::new();
        for text in ["a\nb", "{\"a\": 1}"] {
            let file = home.put("file", text, 0o600);
            assert!(
                home.find(&[("BEARER_TOKEN_FILE", &file)]).unwrap_err().contains("characters"),
                "{text:?}"
            );
        }
        let file = home.put("file", &"a".repeat(1 << 20), 0o600);
        assert!(home.find(&[("BEARER_TOKEN_FILE", &file)]).unwrap_err().contains("longer"));
    }
}
