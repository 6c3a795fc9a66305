//! The directory of state that outlives a run.

use std::path::{Path, PathBuf};

/// The given directory, or that of the XDG base directories.
pub fn state_directory(given: Option<&Path>) -> Option<PathBuf> {
    if let Some(given) = given {
        return Some(given.to_owned());
    }
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let home = absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")));
    home.map(|home| home.join("ropewalk"))
}
