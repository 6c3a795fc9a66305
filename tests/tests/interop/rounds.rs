//! The transfers in every table of a way to log in: files up and down, and trees.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::Result;
use ropewalk_tests::process::Outcome;
use ropewalk_tests::{files, tree};

const SIZE: u64 = 3_000_001;

/// One end of a copy.
pub(crate) enum Place<'a> {
    Local(&'a Path),
    /// A path beneath the URL of a server.
    Remote(&'a str),
}

/// A number that no other cell has.
pub(crate) fn number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Uploads a file, copies it to `over` if that is a server, and downloads it again.
pub(crate) fn file(
    directory: &Path,
    server: &str,
    over: Option<&str>,
    copy: &dyn Fn(&Place, &Place) -> Result<Outcome>,
) -> Result<()> {
    let number = number();
    let [source, back] = ["source", "back"].map(|name| directory.join(format!("{name}{number}")));
    files::write_random(&source, SIZE, number as u64)?;
    let there = format!("{server}/there{number}");
    copy(&Place::Local(&source), &Place::Remote(&there))?.succeeded()?;
    let last = match over {
        Some(over) => {
            let over = format!("{over}/over{number}");
            copy(&Place::Remote(&there), &Place::Remote(&over))?.succeeded()?;
            over
        }
        None => there,
    };
    copy(&Place::Remote(&last), &Place::Local(&back))?.succeeded()?;
    files::ensure_same(&source, &back)
}

/// Uploads a tree with many small files, and downloads it again.
pub(crate) fn tree(
    directory: &Path,
    server: &str,
    copy: &dyn Fn(&Place, &Place) -> Result<Outcome>,
) -> Result<()> {
    let number = number();
    let [from, back]: [PathBuf; 2] = ["from", "again"].map(|name| directory.join(format!("{name}{number}")));
    tree::make(&from, false)?;
    tree::make_many(&from.join("many"), 60, 1500)?;
    let there = format!("{server}/tree{number}/");
    copy(&Place::Local(&from), &Place::Remote(&there))?.succeeded()?;
    copy(&Place::Remote(&there), &Place::Local(&back))?.succeeded()?;
    tree::ensure_same(&from, &back)
}

impl Place<'_> {
    /// In the syntax of our client; `directory`: with a slash at the end.
    pub(crate) fn path(&self, directory: bool) -> String {
        match self {
            Self::Local(path) => format!("{}{}", path.display(), if directory { "/" } else { "" }),
            Self::Remote(url) => (*url).to_owned(),
        }
    }

    /// In the syntax of globus-url-copy.
    pub(crate) fn url(&self, directory: bool) -> String {
        match self {
            Self::Local(_) => format!("file://{}", self.path(directory)),
            Self::Remote(url) => (*url).to_owned(),
        }
    }
}
