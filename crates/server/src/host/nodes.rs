//! The data nodes of a server that is a front end, and the directory that it shares with them.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ropewalk_nodes::{FrontEnd, JoinToken};

use crate::config::{Config, Problem, Severity};
use crate::error::{Error, Result};

pub(crate) struct Nodes {
    pub(crate) front_end: Arc<FrontEnd>,
    /// The nodes' `--root`, without symbolic links.
    root: PathBuf,
}

impl Nodes {
    /// Listens for nodes; `None` if the settings want none.
    pub(crate) fn bind(config: &Config) -> Result<Option<Self>> {
        let Some(nodes) = &config.nodes else { return Ok(None) };
        let wrong = |setting: &str, text: String| {
            let setting = format!("nodes.{setting}");
            Error::Config(vec![Problem { severity: Severity::Error, setting, text }])
        };
        let Some(token) = &nodes.join_token_file else {
            return Err(wrong("join_token_file", "is missing".into()));
        };
        let token = JoinToken::load(token).map_err(|error| wrong("join_token_file", error.to_string()))?;
        let root = nodes.root.as_deref().or(config.root.as_deref()).unwrap_or(Path::new("/"));
        let root =
            root.canonicalize().map_err(|error| wrong("root", format!("{}: {error}", root.display())))?;
        let front_end = FrontEnd::bind(nodes.listen, token, env!("CARGO_PKG_VERSION"))
            .map_err(|source| Error::Listen { address: nodes.listen, source })?;
        Ok(Some(Self { front_end, root }))
    }

    /// The path of an open file within the shared directory, as nodes have it.
    pub(crate) fn shared_path(&self, file: BorrowedFd<'_>) -> io::Result<Vec<u8>> {
        let path = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
        let Ok(below) = path.strip_prefix(&self.root) else {
            return Err(io::Error::other(format!(
                "the file is not below {}, which the data nodes share",
                self.root.display()
            )));
        };
        Ok([b"/", OsStr::as_bytes(below.as_os_str())].concat())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs::{self, File, Permissions};
    use std::os::fd::AsFd as _;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    #[test]
    fn path_of_open_file_is_found_through_links_and_only_below_root() {
        let directory = tempfile::tempdir().unwrap();
        let (token, shared) = (directory.path().join("token"), directory.path().join("shared"));
        fs::write(&token, "0123456789abcdef0123456789abcdef").unwrap();
        fs::set_permissions(&token, Permissions::from_mode(0o600)).unwrap();
        fs::create_dir_all(shared.join("real")).unwrap();
        symlink("real", shared.join("link")).unwrap();
        fs::write(shared.join("real/f"), "x").unwrap();
        let text =
            format!("root = {shared:?}\n[nodes]\nlisten = '127.0.0.1:0'\njoin_token_file = {token:?}\n");
        let nodes = Nodes::bind(&Config::parse(&text).unwrap()).unwrap().unwrap();
        let path = |path: &Path| nodes.shared_path(File::open(path).unwrap().as_fd());
        assert_eq!(path(&shared.join("link/f")).unwrap(), b"/real/f");
        let outside = path(&token).unwrap_err().to_string();
        assert!(outside.contains("which the data nodes share"), "{outside}");
    }
}
