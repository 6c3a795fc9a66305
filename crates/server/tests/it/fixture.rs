//! A server in this process.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use ropewalk_security::PasswordFile;
use ropewalk_server::{AnonymousAccess, Backends, Config, Server, ServerHandle, StoreFactory};
use ropewalk_storage::Store;
use tempfile::TempDir;

use crate::client::Client;
use crate::measurements::Profiler;

pub(crate) struct Fixture {
    pub(crate) directory: TempDir,
    pub(crate) address: SocketAddr,
    /// Where data nodes join, if the server is a front end.
    pub(crate) nodes: Option<SocketAddr>,
    pub(crate) handle: ServerHandle,
    thread: Option<JoinHandle<()>>,
}

/// All clients may log in and write; pauses are short.
pub(crate) fn config(root: &Path) -> Config {
    let anonymous = AnonymousAccess { write: true, ..AnonymousAccess::default() };
    let mut config = Config::quick(SocketAddr::from(([127, 0, 0, 1], 0)), Some(anonymous), root);
    config.hostname = Some("test".into());
    // Users of these tests have no local accounts, even if root runs them.
    config.identity.mapped = false;
    config.timeouts.login_failure = Duration::from_millis(1);
    config.data.connect_timeout = Duration::from_secs(5);
    config
}

impl Fixture {
    pub(crate) fn new() -> Self {
        Self::with(|_, _| ())
    }

    /// `change` gets the settings and a directory for files that are not served.
    pub(crate) fn with(change: impl FnOnce(&mut Config, &Path)) -> Self {
        Self::start(change, |config| {
            let backends = Backends { measurements: Some(Arc::new(Profiler)), ..Backends::default() };
            Server::bind_with(config, backends)
        })
    }

    /// All roots are this store.
    pub(crate) fn with_store(store: Arc<dyn Store>, change: impl FnOnce(&mut Config, &Path)) -> Self {
        let stores: StoreFactory = Arc::new(move |_| Ok(Arc::clone(&store)));
        Self::with_backends(Backends { stores: Some(stores), ..Backends::default() }, change)
    }

    pub(crate) fn with_backends(backends: Backends, change: impl FnOnce(&mut Config, &Path)) -> Self {
        Self::start(change, |config| Server::bind_with(config, backends))
    }

    fn start(
        change: impl FnOnce(&mut Config, &Path),
        bind: impl FnOnce(Config) -> ropewalk_server::Result<Server>,
    ) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("root");
        std::fs::create_dir(&root).unwrap();
        let mut config = config(&root);
        change(&mut config, directory.path());
        let server = bind(config).unwrap();
        let (address, nodes, handle) = (server.local_addrs()[0], server.nodes_addr(), server.handle());
        let thread = std::thread::spawn(move || server.run().unwrap());
        Self { directory, address, nodes, handle, thread: Some(thread) }
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.directory.path().join("root")
    }

    pub(crate) fn write(&self, name: &str, data: impl AsRef<[u8]>) {
        let path = self.root().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, data).unwrap();
    }

    pub(crate) fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.root().join(name)).unwrap()
    }

    pub(crate) fn exists(&self, name: &str) -> bool {
        self.root().join(name).symlink_metadata().is_ok()
    }

    pub(crate) fn connect(&self) -> Client {
        Client::connect(self.address)
    }

    /// A session that has logged in and set TYPE I.
    pub(crate) fn login(&self) -> Client {
        let mut client = self.connect();
        client.login("anonymous", "x@");
        client
    }

    /// Waits for the end of the server.
    pub(crate) fn join(&mut self) {
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        self.handle.stop();
        if let Some(thread) = self.thread.take() {
            let result = thread.join();
            if !std::thread::panicking() {
                result.unwrap();
            }
        }
    }
}

/// A password file with these users and their passwords.
pub(crate) fn passwords(directory: &Path, users: &[(&str, &str)]) -> PathBuf {
    let path = directory.join("users");
    let mut file = PasswordFile::load_or_new(&path).unwrap();
    for (name, password) in users {
        file.set(name, password.as_bytes()).unwrap();
    }
    path
}
