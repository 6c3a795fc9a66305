//! Counting files while they change.
//!
//! A scan lists one directory after the other. A change in a directory that is counted already
//! changes the count; one in a directory that is not counted yet is found there later; in the
//! directory that is being listed, the charge of a changed file replaces what the listing shows. So
//! the count is exact when the scan ends. A directory that moves may be missed or counted twice:
//! the scan is repeated then.

use std::collections::{HashMap, HashSet};

use crate::book::{AccountId, AccountKey, Accounts, Inode};

/// The charge for one file: one file, and its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Charge {
    pub(crate) bytes: u64,
    pub(crate) accounts: Accounts,
}

/// An account that was wrong: bytes and files before and after.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Correction {
    pub key: AccountKey,
    pub before: (u64, u64),
    pub after: (u64, u64),
}

#[derive(Default)]
pub(crate) struct Scan {
    /// Bytes and files. A change may take away more than is counted yet, for a moment.
    totals: HashMap<AccountId, (i128, i128)>,
    done: HashSet<Inode>,
    current: Option<Current>,
    pub(crate) must_repeat: bool,
}

/// The directory that is being listed.
struct Current {
    directory: Inode,
    seen: HashMap<Inode, Charge>,
    /// Files that have changed since the listing began; `None` if they are gone.
    changed: HashMap<Inode, Option<Charge>>,
}

impl Scan {
    pub(crate) fn enter(&mut self, directory: Inode, open: impl Iterator<Item = (Inode, Charge)>) -> bool {
        if self.must_repeat || self.done.contains(&directory) {
            return false;
        }
        let changed = open.map(|(file, charge)| (file, Some(charge))).collect();
        self.current = Some(Current { directory, seen: HashMap::new(), changed });
        true
    }

    pub(crate) fn saw(&mut self, file: Inode, charge: Charge) {
        if let Some(current) = &mut self.current {
            current.seen.insert(file, charge);
        }
    }

    pub(crate) fn leave(&mut self) {
        let Some(Current { directory, mut seen, changed }) = self.current.take() else { return };
        for (file, charge) in changed {
            match charge {
                Some(charge) => seen.insert(file, charge),
                None => seen.remove(&file),
            };
        }
        for charge in seen.values() {
            self.count(charge, 1);
        }
        self.done.insert(directory);
    }

    pub(crate) fn note(&mut self, at: Inode, file: Inode, old: Option<&Charge>, new: Option<&Charge>) {
        if self.done.contains(&at) {
            if let Some(old) = old {
                self.count(old, -1);
            }
            if let Some(new) = new {
                self.count(new, 1);
            }
        } else if let Some(current) = self.current.as_mut().filter(|current| current.directory == at) {
            current.changed.insert(file, new.cloned());
        }
    }

    /// A new directory in one that is counted, or whose listing may not show it, counts as counted:
    /// it has nothing but the `open` files.
    pub(crate) fn made_directory(
        &mut self,
        parent: Inode,
        directory: Inode,
        open: impl Iterator<Item = Charge>,
    ) {
        let listing = self.current.as_ref().map(|current| current.directory);
        if listing == Some(directory) {
            return;
        }
        if self.done.contains(&parent) || listing == Some(parent) {
            if self.done.insert(directory) {
                open.for_each(|charge| self.count(&charge, 1));
            }
        } else {
            // An earlier directory, which is gone, may have had this number.
            self.done.remove(&directory);
        }
    }

    /// Bytes and files of an account.
    pub(crate) fn total(&self, id: AccountId) -> (u64, u64) {
        let (bytes, files) = self.totals.get(&id).copied().unwrap_or_default();
        let whole = |n: i128| u64::try_from(n.max(0)).unwrap_or(u64::MAX);
        (whole(bytes), whole(files))
    }

    fn count(&mut self, charge: &Charge, sign: i128) {
        for &id in charge.accounts.iter() {
            let (bytes, files) = self.totals.entry(id).or_default();
            *bytes += sign * i128::from(charge.bytes);
            *files += sign;
        }
    }
}
