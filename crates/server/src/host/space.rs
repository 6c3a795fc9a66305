//! Quotas: the accounts of the server, and what keeps them.
//!
//! [`Space`] belongs to the host. Sessions reach it through a [`metered`] store, which reports each
//! change of a file to the accounting machine of `ropewalk_space`. A thread writes changed accounts
//! to the ledger, and another counts all files at the start and from time to time, since the ledger
//! alone is not trusted. Locks: that of a directory's names first, then that of the accounts.

mod counting;
mod expiring;
mod keeper;
mod ledger_file;
mod metered;
mod metered_file;
mod reserving;
mod rules;
#[cfg(test)]
mod tests;

use std::array;
use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(crate) use expiring::make_room_on_disk;
pub(crate) use keeper::Keeper;
pub(crate) use metered::on_host;
use parking_lot::{Mutex, MutexGuard};
use ropewalk_space::ledger::Record;
use ropewalk_space::{AccountId, Accounts, Book, Inode, Refusal};
use ropewalk_storage::{Error, ErrorKind, Metadata, Store};

use self::ledger_file::LedgerFile;
use self::metered::MeteredStore;
pub(crate) use self::reserving::{Drawing, Request, Room};
pub(crate) use self::rules::Owner;
use self::rules::{OWNER_MARK, Rules};
use crate::config::Config;
use crate::host::clock::now;
use crate::host::expiry::Expiry;

/// The number of locks for names: two directories seldom have the same one.
const LOCKS: usize = 64;

/// The bytes of an account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Charged {
    pub(crate) used: u64,
    /// The free bytes, and the limit.
    pub(crate) limit: Option<(u64, u64)>,
}

pub(crate) struct Space {
    rules: Rules,
    book: Mutex<Book>,
    ledger: Mutex<LedgerFile>,
    /// Changes of names in a directory are made one at a time.
    names: [Mutex<()>; LOCKS],
    expiry: Expiry,
}

impl Space {
    /// Checks the quotas of the settings on this host.
    ///
    /// # Errors
    /// The setting that is wrong, and a text.
    pub(crate) fn check(config: &Config) -> Result<(), (&'static str, String)> {
        Self::prepare(config).map(drop)
    }

    fn prepare(config: &Config) -> Result<Option<(Rules, &Path)>, (&'static str, String)> {
        if config.quota.is_empty() {
            return Ok(None);
        }
        let Some(directory) = &config.space.state_directory else {
            return Err(("space.state_directory", "quotas need a directory for their accounts".into()));
        };
        let rules = Rules::new(&config.quota).map_err(|error| ("quota", error))?;
        Ok(Some((rules, directory)))
    }

    /// The accounts for the quotas of the settings; `None` if there are none.
    ///
    /// # Errors
    /// As [`Self::check`]; or the directory of the accounts cannot be used.
    pub(crate) fn open(config: &Config) -> Result<Option<Arc<Self>>, (&'static str, String)> {
        let Some((rules, directory)) = Self::prepare(config)? else { return Ok(None) };
        let opened = LedgerFile::open(directory);
        let (ledger, records) = opened.map_err(|error| ("space.state_directory", error))?;
        let mut book = Book::default();
        let mut reservations = HashMap::new();
        for record in records {
            match record {
                Record::Account(record) => {
                    if let Some(limits) = rules.limits(&record.key.quota) {
                        let id = book.account(&record.key, limits);
                        book.restore(id, record.bytes, record.files, record.soft_since);
                    }
                }
                Record::Reservation(record) => {
                    reservations.insert(record.token.clone(), record);
                }
                Record::Ended { token } => {
                    reservations.remove(&token);
                }
            }
        }
        reservations.into_values().for_each(|record| reserving::restore(&mut book, &rules, record));
        Ok(Some(Arc::new(Self {
            rules,
            book: Mutex::new(book),
            ledger: Mutex::new(ledger),
            names: array::from_fn(|_| Mutex::new(())),
            expiry: Expiry::new(config.space.expire_parts_after),
        })))
    }

    /// The store of a user, with quotas. `root` is its directory on this host. `marks`: the files
    /// of all users belong to the server's own user, so that the owner has to be written down.
    /// `drawing`: the reservation that uploads draw on.
    pub(crate) fn over(
        self: &Arc<Self>,
        store: Arc<dyn Store>,
        root: &Path,
        user: &str,
        marks: bool,
        drawing: &Drawing,
    ) -> Arc<dyn Store> {
        let root = root.canonicalize().unwrap_or_else(|_| root.to_owned());
        if !self.rules.may_concern(&root) {
            return store;
        }
        let mark = (marks && self.rules.need_owner()).then(|| user.to_owned());
        MeteredStore::over(store, Arc::clone(self), root, mark, drawing)
    }

    /// The store of a directory of this host for the server itself.
    fn over_own(self: &Arc<Self>, store: Arc<dyn Store>, root: &Path) -> Arc<dyn Store> {
        self.over(store, root, "", false, &Drawing::default())
    }

    /// The account with the least free space for files of a user in a directory of this host, among
    /// those that limit bytes; or the account of the quota with this name.
    pub(crate) fn usage(&self, directory: &Path, owner: &Owner, quota: Option<&[u8]>) -> Option<Charged> {
        let accounts = self.accounts(directory, owner);
        let book = self.book();
        let charged = |id: &AccountId| {
            let (used, limit) = (book.state(*id).bytes, book.free_bytes(*id, now()));
            Charged { used, limit }
        };
        match quota {
            Some(name) => {
                accounts.iter().find(|id| book.state(**id).key.quota.as_bytes() == name).map(charged)
            }
            None => {
                let limited = accounts.iter().map(charged).filter(|charged| charged.limit.is_some());
                limited.min_by_key(|charged| charged.limit)
            }
        }
    }

    /// The owner of new files of a user, which has this group in the file system.
    pub(crate) fn owner_of_new(&self, user: &str, gid: u32) -> Owner {
        self.rules.owner_of_new(user, gid)
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock()
    }

    /// Locks the names in these directories.
    fn lock_names(&self, directories: &[Inode]) -> Vec<MutexGuard<'_, ()>> {
        let mut places: Vec<_> = directories.iter().map(|one| one.number as usize % LOCKS).collect();
        places.sort_unstable();
        places.dedup();
        places.into_iter().map(|place| self.names[place].lock()).collect()
    }

    /// The accounts of a file in a directory.
    fn accounts(&self, directory: &Path, owner: &Owner) -> Accounts {
        let keys = self.rules.accounts(directory, owner);
        let mut book = self.book();
        keys.into_iter().map(|(key, limits)| book.account(&key, limits)).collect()
    }

    /// The accounts of a file that exists.
    fn accounts_of(&self, directory: &Path, name: &[u8], metadata: &Metadata) -> Accounts {
        self.accounts(directory, &self.rules.owner(directory, name, metadata))
    }

    /// Writes changed accounts and reservations to the ledger.
    fn save(&self) {
        if let Err(error) = self.write_ledger() {
            let ledger = self.ledger.lock();
            tracing::error!(%error, path = %ledger.path().display(), "the ledger of quotas cannot be written");
        }
    }

    fn write_ledger(&self) -> io::Result<()> {
        let mut ledger = self.ledger.lock();
        let changed = reserving::changed_records(&mut self.book());
        ledger.append(&changed, || reserving::all_records(&self.book()))
    }
}

fn inode(metadata: &Metadata) -> Inode {
    Inode { device: metadata.device, number: metadata.inode }
}

/// The error of an operation that exceeds a quota.
fn refused(refusal: &Refusal, action: &'static str, path: &[u8]) -> Error {
    Error::new(ErrorKind::QuotaExceeded, action, path).with_detail(refusal.to_string())
}

/// A directory of this host.
struct Spot {
    inode: Inode,
    path: PathBuf,
}
