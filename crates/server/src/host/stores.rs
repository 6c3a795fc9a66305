//! The stores of accounts. Directories of this host have one store for each root and identity,
//! which the sessions share. Other stores come from the caller's [`StoreFactory`], which gets the
//! log-in.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use ropewalk_protocol::command::Password;
use ropewalk_storage::{Identity, PosixOptions, PosixStore, Store};

use crate::config::Problem;

/// Returns the store of a log-in. It is called on the thread of the log-in, for each session.
pub type StoreFactory =
    Arc<dyn Fn(&StoreLogin<'_>) -> ropewalk_storage::Result<Arc<dyn Store>> + Send + Sync>;

/// A log-in that has succeeded and needs its store.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct StoreLogin<'a> {
    /// The name of the user at this server.
    pub user: &'a str,
    /// The root directory in the settings of the account.
    pub root: &'a Path,
    /// The target in the name with which the client has logged in ([`Backends::targets`]).
    ///
    /// [`Backends::targets`]: crate::Backends::targets
    pub target: Option<&'a str>,
    pub credential: Credential<'a>,
}

/// The proof by which a client has logged in. A store behind another server may need it there.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Credential<'a> {
    Anonymous,
    Password(&'a Password),
    /// A bearer token.
    Token(&'a Password),
    /// The subject of a certificate.
    Certificate(&'a str),
    /// A Kerberos ticket of this principal.
    Ticket(&'a str),
    /// The log-in at sshd.
    Ssh,
}

enum Maker {
    /// Directories of this host, worked on as the given identity.
    Posix,
    /// Stores of the caller, which take care of identities themselves.
    Other(StoreFactory),
}

/// Two users never share a store: a store works as the user for whom it was made.
type Key = (PathBuf, Option<Identity>);

pub(crate) struct Stores {
    maker: Maker,
    open: Mutex<HashMap<Key, Weak<dyn Store>>>,
    /// Names of users may have a target behind them.
    pub(crate) targets: bool,
    /// The factory verifies passwords.
    pub(crate) passwords: bool,
}

impl Stores {
    pub(crate) fn new(factory: StoreFactory, targets: bool, passwords: bool) -> Self {
        Self { maker: Maker::Other(factory), open: Mutex::default(), targets, passwords }
    }

    pub(crate) fn posix() -> Self {
        Self { maker: Maker::Posix, open: Mutex::default(), targets: false, passwords: false }
    }

    /// Leaves out what cannot be wrong about the settings, because these stores do not use it.
    pub(crate) fn concerned(&self, problems: Vec<Problem>) -> Vec<Problem> {
        let others = !self.have_identities();
        let unused = |setting: &str| {
            others && setting.ends_with("root") || self.passwords && setting == "password_file"
        };
        problems.into_iter().filter(|problem| !unused(&problem.setting)).collect()
    }

    /// Whether stores work as the identities for which they are opened.
    pub(crate) fn have_identities(&self) -> bool {
        matches!(self.maker, Maker::Posix)
    }

    /// Checks that the root directory of accounts exists, before a user logs in. Other stores need
    /// the log-in.
    pub(crate) fn check(&self, root: &Path) -> ropewalk_storage::Result<()> {
        match &self.maker {
            Maker::Posix => self.directory(root, None).map(drop),
            Maker::Other(_) => Ok(()),
        }
    }

    /// The store of a log-in, which works as an identity or as the server's own user.
    pub(crate) fn open(
        &self,
        login: &StoreLogin<'_>,
        identity: Option<&Identity>,
    ) -> ropewalk_storage::Result<Arc<dyn Store>> {
        match &self.maker {
            Maker::Posix => self.directory(login.root, identity),
            Maker::Other(factory) => factory(login),
        }
    }

    fn directory(
        &self,
        root: &Path,
        identity: Option<&Identity>,
    ) -> ropewalk_storage::Result<Arc<dyn Store>> {
        let key = (root.to_owned(), identity.cloned());
        let find = |open: &HashMap<Key, Weak<dyn Store>>| open.get(&key).and_then(Weak::upgrade);
        if let Some(store) = find(&self.open.lock()) {
            return Ok(store);
        }
        // Not under the lock: the directory of one user may be on a file server that does not
        // answer.
        let (own, act) = (identity.cloned(), identity.is_some());
        let options = PosixOptions { identity: own, act, no_magic_links: true, ..PosixOptions::default() };
        let store: Arc<dyn Store> = Arc::new(PosixStore::new(root, options)?);
        let mut open = self.open.lock();
        if let Some(store) = find(&open) {
            return Ok(store);
        }
        open.retain(|_, store| store.strong_count() > 0);
        open.insert(key, Arc::downgrade(&store));
        Ok(store)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn store_does_not_open_descriptors_of_process() {
        use std::os::fd::AsRawFd as _;
        let open = std::fs::File::open("/dev/zero").unwrap();
        let path = format!("/proc/self/fd/{}", open.as_raw_fd());
        let path = ropewalk_protocol::path::VirtualPath::parse(path.as_bytes()).unwrap();
        let store = Stores::posix().directory(Path::new("/"), None).unwrap();
        assert!(store.open_read(&path).is_err());
    }

    #[test]
    fn stores_of_two_identities_differ() {
        let stores = Stores::posix();
        let root = Path::new("/");
        let own = stores.directory(root, None).unwrap();
        assert!(Arc::ptr_eq(&own, &stores.directory(root, None).unwrap()));
        if !Identity::can_act() {
            assert!(std::env::var_os("CI").is_none(), "this test has to run as root");
            eprintln!("SKIPPED: only root can act for others");
            return;
        }
        let ada = Identity { uid: 4001, gid: 4001, groups: vec![4001] };
        let store = stores.directory(root, Some(&ada)).unwrap();
        assert!(!Arc::ptr_eq(&own, &store));
        assert!(Arc::ptr_eq(&store, &stores.directory(root, Some(&ada)).unwrap()));
        // Groups are part of an identity.
        let more = Identity { groups: vec![4001, 5], ..ada };
        assert!(!Arc::ptr_eq(&store, &stores.directory(root, Some(&more)).unwrap()));
    }
}
