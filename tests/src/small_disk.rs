//! A small file system for one program, which sees it in a mount namespace of its own.

use std::path::Path;
use std::time::Duration;

use crate::scratch::Scratch;
use crate::{peers, process};

const LIMIT: Duration = Duration::from_secs(60);

/// Returns the beginning of a command line that runs a program with a private file system of
/// `bytes` mounted at `directory`.
pub fn on_small_disk(directory: &Path, bytes: u64) -> Vec<String> {
    let mut words = vec!["unshare".to_owned(), "--mount".into()];
    if !rustix::process::geteuid().is_root() {
        words.extend(["--user".into(), "--map-root-user".into()]);
    }
    let script = format!("mount -t tmpfs -o size={bytes} none '{}' && exec \"$@\"", directory.display());
    words.extend(["sh".into(), "-c".into(), script, "sh".into()]);
    words
}

/// Returns false, after a message, if this machine does not permit mounts.
pub fn can_mount() -> bool {
    let allowed = Scratch::new().is_ok_and(|scratch| {
        let words = on_small_disk(scratch.path(), 1 << 20);
        process::run(process::command(&words[0]).args(&words[1..]).arg("true"), LIMIT)
            .and_then(process::Outcome::succeeded)
            .is_ok()
    });
    allowed || !peers::skip("a small file system cannot be mounted (needs root or user namespaces)")
}
