//! Pool accounts: a directory (`GRIDMAPDIR`) with an empty file for each account. A lease is a hard
//! link to such a file, with a name made from the subject. A file with one link is free, so no lock
//! is needed.

use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How often two subjects that tried to lease the same account at the same time both try again.
const ROUNDS: u32 = 8;

/// Why no account was leased.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    #[error("all accounts of the pool {pool:?} in {directory} are leased")]
    Exhausted { pool: String, directory: PathBuf },
    #[error("{path}: {source}")]
    Directory { path: PathBuf, source: io::Error },
}

/// Returns the account of the pool that `subject` has leased, or leases one. The accounts are the
/// files whose names are the pool's prefix and digits.
///
/// # Errors
/// All accounts are leased, or the directory or a file in it cannot be read, linked or removed.
pub fn lease(directory: &Path, pool: &str, subject: &str) -> Result<String, PoolError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| PoolError::Directory { path, source }
    };
    let lease = directory.join(lease_name(subject));
    for round in 0..ROUNDS {
        let mut raced = false;
        let accounts = accounts(directory, pool).map_err(failed(directory))?;
        if let Some((account, names)) = held(directory, &lease, &accounts).map_err(failed(&lease))? {
            // A file with a third link belongs to a subject that is about to remove its own, or is
            // shared by two subjects for good.
            if names <= 2 || round + 1 == ROUNDS {
                return Ok(account);
            }
            raced = true;
        }
        let free = if raced { &[] } else { &accounts[..] };
        for account in free {
            let path = directory.join(account);
            if path.metadata().map_err(failed(&path))?.nlink() != 1 {
                continue;
            }
            match std::fs::hard_link(&path, &lease) {
                Ok(()) => {}
                // Another process has just made the lease for the same subject.
                Err(e) if e.kind() == ErrorKind::AlreadyExists => {
                    raced = true;
                    break;
                }
                Err(e) => return Err(failed(&lease)(e)),
            }
            if lease.metadata().map_err(failed(&lease))?.nlink() == 2 {
                return Ok(account.clone());
            }
            // Another subject linked the same file at the same time, so both remove their links.
            std::fs::remove_file(&lease).map_err(failed(&lease))?;
            raced = true;
        }
        if !raced {
            break;
        }
        // A random delay, so that both do not retry in step.
        std::thread::sleep(Duration::from_micros(fastrand::u64(0..1000 << round)));
    }
    Err(PoolError::Exhausted { pool: pool.to_owned(), directory: directory.to_owned() })
}

/// The file name of a lease: the subject in lower case, with `%xx` for all but letters and digits.
fn lease_name(subject: &str) -> String {
    subject.bytes().fold(String::new(), |mut out, byte| {
        if byte.is_ascii_alphanumeric() {
            out.push(char::from(byte.to_ascii_lowercase()));
        } else {
            out.push_str(&format!("%{byte:02x}"));
        }
        out
    })
}

fn accounts(directory: &Path, pool: &str) -> io::Result<Vec<String>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        let digits = name
            .strip_prefix(pool)
            .is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit()));
        if digits && entry.file_type()?.is_file() {
            found.push(name);
        }
    }
    found.sort();
    Ok(found)
}

/// Finds the account whose file the lease links to, and the number of links of that file.
fn held(directory: &Path, lease: &Path, accounts: &[String]) -> io::Result<Option<(String, u64)>> {
    let (inode, names) = match lease.metadata() {
        Ok(metadata) => (metadata.ino(), metadata.nlink()),
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e),
    };
    for account in accounts {
        if directory.join(account).metadata()?.ino() == inode {
            return Ok(Some((account.clone(), names)));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn lease_persists_until_the_pool_is_exhausted() {
        let directory = tempfile::tempdir().unwrap();
        for account in ["dteam001", "dteam002", "dteamx", "other001"] {
            std::fs::write(directory.path().join(account), "").unwrap();
        }
        let lease = |subject| lease(directory.path(), "dteam", subject);
        assert_eq!(lease("/O=Grid/CN=a").unwrap(), "dteam001");
        assert_eq!(lease("/O=Grid/CN=b").unwrap(), "dteam002");
        assert_eq!(lease("/O=Grid/CN=a").unwrap(), "dteam001");
        assert!(matches!(lease("/O=Grid/CN=c"), Err(PoolError::Exhausted { .. })));
        assert!(directory.path().join("%2fo%3dgrid%2fcn%3da").exists());
    }

    #[test]
    fn lease_by_concurrent_subjects_assigns_one_account_each() {
        let directory = tempfile::tempdir().unwrap();
        for account in 0..8 {
            std::fs::write(directory.path().join(format!("p{account}")), "").unwrap();
        }
        let start = std::sync::Barrier::new(8);
        let mut leased: Vec<String> = std::thread::scope(|scope| {
            let begin = |n| {
                let (directory, start) = (directory.path(), &start);
                scope.spawn(move || {
                    start.wait();
                    lease(directory, "p", &format!("/CN={n}")).unwrap()
                })
            };
            let all: Vec<_> = (0..8).map(begin).collect();
            all.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        leased.sort();
        leased.dedup();
        assert_eq!(leased.len(), 8);
    }
}
