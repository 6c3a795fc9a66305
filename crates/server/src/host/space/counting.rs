//! Counts the files that quotas concern, on a thread of its own, while sessions change them.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

use ropewalk_protocol::path::VirtualPath;
use ropewalk_space::{Accounts, Inode};
use ropewalk_storage::{Error, ErrorKind, Kind, Metadata, PosixOptions, PosixStore, Result, Store};

use super::metered::{counts, on_host};
use super::{Space, inode, now};

/// A count that is disturbed by moved directories is repeated this many times.
const ATTEMPTS: u32 = 5;
/// The number of files that are entered at a time.
const BATCH: usize = 512;

/// Counts at once and then in each interval, until `stop` is closed.
pub(super) fn run(space: &Arc<Space>, stop: &Receiver<()>, interval: Duration) {
    loop {
        count(space, stop);
        if stop.recv_timeout(interval) != Err(RecvTimeoutError::Timeout) {
            return;
        }
    }
}

pub(super) fn count(space: &Arc<Space>, stop: &Receiver<()>) {
    let began = Instant::now();
    for _ in 0..ATTEMPTS {
        space.book().begin_scan();
        for base in space.rules.bases() {
            if let Err(error) = count_tree(space, base, stop) {
                space.book().abandon_scan();
                if error.kind() != ErrorKind::Interrupted {
                    tracing::error!(
                        base = %base.display(), %error,
                        "files cannot be counted: quotas continue with what the ledger says"
                    );
                }
                return;
            }
        }
        let Some(corrections) = space.book().end_scan(now()) else { continue };
        for correction in &corrections {
            let (quota, holder) = (&correction.key.quota, &correction.key.holder);
            let (before, after) = (correction.before, correction.after);
            tracing::info!(quota, holder, ?before, ?after, "an account was corrected: bytes and files");
        }
        tracing::info!(seconds = began.elapsed().as_secs(), corrected = corrections.len(), "files counted");
        space.save();
        return;
    }
    space.book().abandon_scan();
    tracing::warn!("directories are moved while files are counted: the next count follows later");
}

fn count_tree(space: &Arc<Space>, base: &Path, stop: &Receiver<()>) -> Result<()> {
    let store = PosixStore::new(base, PosixOptions { no_magic_links: true, ..PosixOptions::default() })?;
    let mut directories = vec![VirtualPath::root()];
    while let Some(directory) = directories.pop() {
        let inode = match store.stat(&directory, false) {
            Ok(metadata) if metadata.kind == Kind::Directory => inode(&metadata),
            // It was removed or replaced.
            Ok(_) => continue,
            Err(error) if error.is_not_found() => continue,
            Err(error) => return Err(error),
        };
        let names = space.lock_names(&[inode]);
        let entered = space.book().enter(inode);
        drop(names);
        if !entered {
            continue;
        }
        let path = on_host(base, &directory);
        let mut batch = Vec::new();
        let listed = store.list(&directory, &mut |name, metadata| {
            if matches!(stop.try_recv(), Err(TryRecvError::Disconnected)) {
                return Err(Error::new(ErrorKind::Interrupted, "list", directory.as_bytes()));
            }
            let Ok(child) = directory.child(name) else { return Ok(()) };
            match metadata.kind {
                Kind::Directory => directories.push(child),
                Kind::File if counts(&child) => {
                    batch.push(seen(space, &path, name, &metadata));
                    if batch.len() == BATCH {
                        enter(space, &mut batch);
                    }
                }
                _ => {}
            }
            Ok(())
        });
        match listed {
            Err(error) if error.is_not_found() => {}
            listed => listed?,
        }
        enter(space, &mut batch);
        let _names = space.lock_names(&[inode]);
        space.book().leave();
    }
    Ok(())
}

type Seen = (Inode, u64, Accounts);

fn seen(space: &Space, directory: &Path, name: &[u8], metadata: &Metadata) -> Seen {
    (inode(metadata), metadata.size, space.accounts_of(directory, name, metadata))
}

fn enter(space: &Space, batch: &mut Vec<Seen>) {
    let mut book = space.book();
    for (file, bytes, accounts) in batch.drain(..) {
        book.saw(file, bytes, &accounts);
    }
}
