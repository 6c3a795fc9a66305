//! The accounting machine.
//!
//! A [`Book`] holds the accounts and the files that are being changed. A file is opened before the
//! first change and closed after the last one; meanwhile it is charged for at least the bytes that
//! it has on disk. Growth is charged before it is written, and refused if a limit would be exceeded
//! in any account of the file; a refusal changes nothing. So the sum of the charges of all files is
//! the state of the accounts at any time, and equals the files once none is open. Counters that
//! would overflow refuse; counters that would become negative, because they were wrong before, stay
//! at zero until the next scan corrects them. The bytes left in reservations are
//! charged, too.

use std::collections::HashMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::limits::{Kind, Limits, Refusal};
use crate::reservations::{Drawing, Reservations};
use crate::scan::{Charge, Correction, Scan};

/// A file or directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Inode {
    pub device: u64,
    pub number: u64,
}

/// The name of an account.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct AccountKey {
    pub quota: String,
    /// The user or directory, if each has its own account; empty otherwise.
    pub holder: String,
}

/// An account of a [`Book`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AccountId(usize);

/// The accounts that a file is charged to.
pub type Accounts = Arc<[AccountId]>;

/// The bytes and files in an account, and its limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccountState {
    pub key: AccountKey,
    pub limits: Limits,
    pub bytes: u64,
    pub files: u64,
    /// The time since which a soft limit is exceeded, in seconds since 1970.
    pub soft_since: Option<u64>,
    /// A scan has counted the files since the start.
    pub verified: bool,
}

impl AccountState {
    /// Whether a soft limit has been exceeded for longer than the time of grace.
    fn has_no_grace_left(&self, now: u64) -> bool {
        self.soft_since.is_some_and(|since| now.saturating_sub(since) >= self.limits.grace)
    }
}

#[derive(Default)]
pub struct Book {
    accounts: Vec<AccountState>,
    ids: HashMap<AccountKey, AccountId>,
    open: HashMap<Inode, OpenFile>,
    changed: Vec<AccountId>,
    pub(crate) reservations: Reservations,
    scan: Option<Scan>,
}

struct OpenFile {
    /// The directory that has the file.
    at: Inode,
    charge: Charge,
    holders: u32,
    /// It has no name any more, and no charge.
    removed: bool,
    /// The reservation that is charged for its growth first.
    drawing: Option<Drawing>,
}

impl Book {
    /// The account with this name and these limits, which is made if there is none.
    pub fn account(&mut self, key: &AccountKey, limits: Limits) -> AccountId {
        if let Some(&id) = self.ids.get(key) {
            self.accounts[id.0].limits = limits;
            return id;
        }
        let id = AccountId(self.accounts.len());
        let key = key.clone();
        self.ids.insert(key.clone(), id);
        self.accounts.push(AccountState {
            key,
            limits,
            bytes: 0,
            files: 0,
            soft_since: None,
            verified: false,
        });
        id
    }

    /// Sets an account to what it held before a restart.
    pub fn restore(&mut self, id: AccountId, bytes: u64, files: u64, soft_since: Option<u64>) {
        let account = &mut self.accounts[id.0];
        (account.bytes, account.files, account.soft_since) = (bytes, files, soft_since);
    }

    pub fn state(&self, id: AccountId) -> &AccountState {
        &self.accounts[id.0]
    }

    /// The bytes of an account that are free at the time `now`, and the limit; `None` if there is
    /// no limit.
    pub fn free_bytes(&self, id: AccountId, now: u64) -> Option<(u64, u64)> {
        let account = &self.accounts[id.0];
        let limit = account.limits.of(Kind::Bytes, account.has_no_grace_left(now))?;
        Some((limit.saturating_sub(account.bytes), limit))
    }

    /// Takes the accounts that have changed since the last call, each once.
    pub fn take_changed(&mut self) -> Vec<AccountState> {
        let mut changed = std::mem::take(&mut self.changed);
        changed.sort_unstable();
        changed.dedup();
        changed.into_iter().map(|id| self.accounts[id.0].clone()).collect()
    }

    /// All accounts.
    pub fn states(&self) -> impl Iterator<Item = &AccountState> {
        self.accounts.iter()
    }

    /// Whether a file with so many more bytes, and so many more files, fit into the accounts at the
    /// time `now` (seconds since 1970).
    ///
    /// # Errors
    /// The first account that is too small.
    pub fn check(&self, accounts: &[AccountId], bytes: u64, files: u64, now: u64) -> Result<(), Refusal> {
        for &id in accounts {
            let account = &self.accounts[id.0];
            let over = account.has_no_grace_left(now);
            for (kind, used, needed) in
                [(Kind::Bytes, account.bytes, bytes), (Kind::Files, account.files, files)]
            {
                let hard = account.limits.of(kind, false);
                let limit = account.limits.of(kind, over);
                let most = limit.unwrap_or(u64::MAX);
                if needed > 0 && used.checked_add(needed).is_none_or(|sum| sum > most) {
                    return Err(Refusal {
                        quota: account.key.quota.clone(),
                        holder: account.key.holder.clone(),
                        kind,
                        needed,
                        free: most.saturating_sub(used),
                        limit: most,
                        grace_is_over: limit != hard,
                    });
                }
            }
        }
        Ok(())
    }

    /// Opens a file that exists, in the directory `at`. `bytes` is its size.
    pub fn open(&mut self, file: Inode, at: Inode, bytes: u64, accounts: &Accounts) {
        if self.hold(file) {
            return;
        }
        let charge = Charge { bytes, accounts: Arc::clone(accounts) };
        self.note(at, file, Some(&charge), Some(&charge));
        self.open.insert(file, OpenFile { at, charge, holders: 1, removed: false, drawing: None });
    }

    /// Opens a file that was created just now, without bytes.
    ///
    /// # Errors
    /// It is one file too many. It is not open then, and has to be removed.
    pub fn create(&mut self, file: Inode, at: Inode, accounts: &Accounts, now: u64) -> Result<(), Refusal> {
        self.check(accounts, 0, 1, now).inspect_err(|_| self.note(at, file, None, None))?;
        // A removed file that is still open somewhere keeps its inode, so this is none.
        let charge = Charge { bytes: 0, accounts: Arc::clone(accounts) };
        self.add(accounts, 0, 1, now);
        self.note(at, file, None, Some(&charge));
        self.open.insert(file, OpenFile { at, charge, holders: 1, removed: false, drawing: None });
        Ok(())
    }

    /// Charges a reservation for further growth of an open file, as far as it suffices. This has no
    /// effect if the file counts in other accounts, or draws on another reservation already.
    pub fn draw_on(&mut self, file: Inode, token: &str) {
        let Some(open) = self.open.get_mut(&file).filter(|open| !open.removed) else { return };
        let draws = |drawing: &Drawing| drawing.bytes > 0 && self.reservations.is_there(&drawing.token);
        if open.drawing.as_ref().is_some_and(draws) {
            return;
        }
        open.drawing = self.reservations.drawing(token, &open.charge.accounts);
    }

    /// One more user of a file that is open already. Returns whether it is.
    fn hold(&mut self, file: Inode) -> bool {
        let there = self.open.get_mut(&file);
        there.map(|open| open.holders = open.holders.saturating_add(1)).is_some()
    }

    /// Charges an open file for its bytes up to `end`, before these are written.
    ///
    /// # Errors
    /// They do not fit.
    pub fn grow(&mut self, file: Inode, end: u64, now: u64) -> Result<(), Refusal> {
        let Some(open) = self.open.get(&file).filter(|open| !open.removed) else { return Ok(()) };
        let Some(more) = end.checked_sub(open.charge.bytes).filter(|more| *more > 0) else { return Ok(()) };
        let accounts = Arc::clone(&open.charge.accounts);
        let drawn = self.reservations.can_give(open.drawing.as_ref(), more, now);
        self.check(&accounts, more - drawn, 0, now)?;
        self.set(file, end, now);
        Ok(())
    }

    /// An open file has been cut to `bytes`.
    pub fn shrink(&mut self, file: Inode, bytes: u64, now: u64) {
        if self.open.get(&file).is_some_and(|open| open.charge.bytes > bytes) {
            self.set(file, bytes, now);
        }
    }

    /// Releases a file that was opened once. After the last release it is charged for its size,
    /// `bytes`.
    pub fn close(&mut self, file: Inode, bytes: u64, now: u64) {
        let Some(open) = self.open.get_mut(&file) else { return };
        open.holders -= 1;
        if open.holders > 0 {
            return;
        }
        if !open.removed {
            self.set(file, bytes, now);
        }
        self.open.remove(&file);
    }

    /// An open file has lost its name.
    pub fn remove(&mut self, file: Inode, now: u64) {
        let Some(open) = self.open.get_mut(&file).filter(|open| !open.removed) else { return };
        open.removed = true;
        let (at, charge) = (open.at, open.charge.clone());
        let returned = self.reservations.take_back(open.drawing.as_mut(), charge.bytes);
        self.subtract(&charge.accounts, charge.bytes - returned, 1, now);
        self.note(at, file, Some(&charge), None);
    }

    /// An open file is about to be moved to the directory `at`, or to other accounts.
    ///
    /// # Errors
    /// It does not fit there.
    pub fn relocate(&mut self, file: Inode, at: Inode, to: &Accounts, now: u64) -> Result<(), Refusal> {
        let Some(open) = self.open.get(&file).filter(|open| !open.removed) else { return Ok(()) };
        let charge = &open.charge;
        let new: Vec<_> = to.iter().copied().filter(|id| !charge.accounts.contains(id)).collect();
        self.check(&new, charge.bytes, 1, now)?;
        self.relocate_back(file, at, to, now);
        Ok(())
    }

    /// As [`Self::relocate`], for a move that has failed: the file is where it was.
    pub fn relocate_back(&mut self, file: Inode, at: Inode, to: &Accounts, now: u64) {
        let Some(open) = self.open.get_mut(&file).filter(|open| !open.removed) else { return };
        let old = open.charge.clone();
        let from = std::mem::replace(&mut open.at, at);
        open.charge.accounts = Arc::clone(to);
        if *old.accounts != **to {
            // The bytes are charged to the new accounts, and no more to the reservation.
            open.drawing = None;
        }
        let new = open.charge.clone();
        self.subtract(&old.accounts, old.bytes, 1, now);
        self.add(&new.accounts, new.bytes, 1, now);
        self.note(from, file, Some(&old), None);
        self.note(at, file, None, Some(&new));
    }

    /// The bytes for which an open file is charged.
    pub fn charged(&self, file: Inode) -> Option<u64> {
        self.open.get(&file).filter(|open| !open.removed).map(|open| open.charge.bytes)
    }

    fn set(&mut self, file: Inode, bytes: u64, now: u64) {
        let Some(open) = self.open.get_mut(&file) else { return };
        let (at, old) = (open.at, open.charge.clone());
        open.charge.bytes = bytes;
        let new = open.charge.clone();
        if bytes > old.bytes {
            let more = bytes - old.bytes;
            let drawn = self.reservations.give(open.drawing.as_mut(), more, now);
            self.add(&new.accounts, more - drawn, 0, now);
        } else {
            let less = old.bytes - bytes;
            let returned = self.reservations.take_back(open.drawing.as_mut(), less);
            self.subtract(&new.accounts, less - returned, 0, now);
        }
        self.note(at, file, Some(&old), Some(&new));
    }

    pub(crate) fn add(&mut self, accounts: &[AccountId], bytes: u64, files: u64, now: u64) {
        self.change(accounts, now, |account| {
            account.bytes = account.bytes.saturating_add(bytes);
            account.files = account.files.saturating_add(files);
        });
    }

    pub(crate) fn subtract(&mut self, accounts: &[AccountId], bytes: u64, files: u64, now: u64) {
        self.change(accounts, now, |account| {
            account.bytes = account.bytes.saturating_sub(bytes);
            account.files = account.files.saturating_sub(files);
        });
    }

    fn change(&mut self, accounts: &[AccountId], now: u64, change: impl Fn(&mut AccountState)) {
        for &id in accounts {
            let account = &mut self.accounts[id.0];
            change(account);
            let exceeded = account.limits.are_softly_exceeded(account.bytes, account.files);
            account.soft_since = exceeded.then(|| account.soft_since.unwrap_or(now));
            if self.changed.last() != Some(&id) {
                self.changed.push(id);
            }
        }
        // Many changes of few accounts take no more room than the accounts.
        if self.changed.len() > 2 * self.accounts.len() + 16 {
            self.changed.sort_unstable();
            self.changed.dedup();
        }
    }

    fn note(&mut self, at: Inode, file: Inode, old: Option<&Charge>, new: Option<&Charge>) {
        if let Some(scan) = &mut self.scan {
            scan.note(at, file, old, new);
        }
    }
}

/// Scans: the files are counted while they change.
impl Book {
    pub fn begin_scan(&mut self) {
        self.scan = Some(Scan::default());
    }

    /// Ends a scan without result.
    pub fn abandon_scan(&mut self) {
        self.scan = None;
    }

    /// The scan begins to list a directory. Returns `false` if it is counted already, or the scan
    /// has to be repeated. No name may be created, moved or removed in the directory during this
    /// call and [`Self::leave`]: a change that is half done would be counted twice.
    pub fn enter(&mut self, directory: Inode) -> bool {
        let Some(scan) = &mut self.scan else { return false };
        let open = self.open.iter().filter(|(_, open)| open.at == directory && !open.removed);
        scan.enter(directory, open.map(|(file, open)| (*file, open.charge.clone())))
    }

    /// The listing of the directory shows a file.
    pub fn saw(&mut self, file: Inode, bytes: u64, accounts: &Accounts) {
        if let Some(scan) = &mut self.scan {
            scan.saw(file, Charge { bytes, accounts: Arc::clone(accounts) });
        }
    }

    /// The whole directory was listed.
    pub fn leave(&mut self) {
        if let Some(scan) = &mut self.scan {
            scan.leave();
        }
    }

    /// A directory was made.
    pub fn made_directory(&mut self, parent: Inode, directory: Inode) {
        let Some(scan) = &mut self.scan else { return };
        let open = self.open.iter().filter(|(_, open)| open.at == directory && !open.removed);
        scan.made_directory(parent, directory, open.map(|(_, open)| open.charge.clone()));
    }

    /// A directory was moved. A scan under way cannot find what is beneath it, and is repeated.
    pub fn moved_directory(&mut self) {
        if let Some(scan) = &mut self.scan {
            scan.must_repeat = true;
        }
    }

    pub fn is_scanning(&self) -> bool {
        self.scan.is_some()
    }

    /// Sets the accounts to what the scan has counted, and returns those that were wrong; `None` if
    /// the scan has to be repeated.
    pub fn end_scan(&mut self, now: u64) -> Option<Vec<Correction>> {
        let scan = self.scan.take().filter(|scan| !scan.must_repeat)?;
        let mut corrections = Vec::new();
        for index in 0..self.accounts.len() {
            let id = AccountId(index);
            let (bytes, files) = scan.total(id);
            let bytes = bytes.saturating_add(self.reservations.left_in(id));
            let account = &mut self.accounts[index];
            if (account.bytes, account.files) != (bytes, files) {
                corrections.push(Correction {
                    key: account.key.clone(),
                    before: (account.bytes, account.files),
                    after: (bytes, files),
                });
            }
            account.verified = true;
            self.change(&[id], now, |account| (account.bytes, account.files) = (bytes, files));
        }
        Some(corrections)
    }
}
