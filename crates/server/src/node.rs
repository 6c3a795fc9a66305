//! A data node: a program that joins front ends and moves data in their place.
//!
//! Each session of a front end that needs the node has a link, and a thread that carries out its
//! orders one by one. Files are opened beneath the node's root as the user whom the front end
//! names: programs with the join token are trusted with every file there.

mod grants;
mod line;
mod marks;
mod orders;
mod transfer;

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;

use ropewalk_engine::{BufferBudget, Pool};
use ropewalk_gsi::{GsiConf, GsiConfError, Places, TlsSettings};
use ropewalk_layers::Registry;
use ropewalk_nodes::{Announcement, JoinFailure, JoinToken, Joined, Member, Serve, SessionLease, TokenError};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::error::Error;
use crate::host::stores::Stores;
use crate::privileges::confine_node;

/// The settings of a data node.
#[derive(Clone, Debug)]
pub struct NodeSettings {
    /// Hosts and ports at which the front ends accept nodes.
    pub front_ends: Vec<String>,
    pub join_token_file: PathBuf,
    /// The name, which no other node of the front ends has.
    pub name: String,
    /// The directory of the shared file system.
    pub root: PathBuf,
    /// The addresses for data connections. If there is none, it is the one from which the node
    /// reaches each front end.
    pub addresses: Vec<IpAddr>,
    /// The rate of the network in bytes per second. The front end gives channels to nodes in
    /// proportion to it.
    pub capacity: u64,
    /// The ports of passive data connections.
    pub data_ports: Option<(u16, u16)>,
    /// The memory for buffers of all transfers, in bytes.
    pub buffer_memory: u64,
    /// The directory of trusted authorities, for data connections with GSI. `None`:
    /// `X509_CERT_DIR`, or else `/etc/grid-security/certificates`.
    pub authorities: Option<PathBuf>,
}

/// A node cannot start or continue.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    #[error(transparent)]
    Token(#[from] TokenError),
    #[error(transparent)]
    Join(#[from] JoinFailure),
    #[error("the root {path}: {source}")]
    Root { path: PathBuf, source: ropewalk_storage::Error },
    #[error(transparent)]
    GsiConf(#[from] GsiConfError),
    #[error("cannot handle signals: {0}")]
    Signals(std::io::Error),
    #[error(transparent)]
    Privileges(#[from] Error),
}

impl NodeError {
    /// Whether the settings are wrong, and not the network.
    pub fn is_of_settings(&self) -> bool {
        let join = matches!(self, Self::Join(JoinFailure::Address { .. } | JoinFailure::Twice(_)));
        join || matches!(self, Self::Token(_) | Self::Root { .. } | Self::GsiConf(_))
    }
}

/// A data node that has joined one of its front ends at least.
pub struct Node {
    member: Arc<Member>,
    joined: Vec<Joined>,
    shared: Arc<Shared>,
}

/// The state that all sessions of a node share.
struct Shared {
    root: PathBuf,
    stores: Stores,
    registry: Registry,
    streams: Arc<Pool>,
    budget: Arc<BufferBudget>,
    data_ports: Option<(u16, u16)>,
    marks: marks::Marks,
    authorities: PathBuf,
    /// As `gsi.conf` has it.
    gsi: TlsSettings,
}

impl Node {
    /// Gives up all privileges that the process does not need, as
    /// [`Server::confine`](crate::Server::confine) does, and joins the front ends. The main
    /// thread has to call it before other threads are made.
    ///
    /// # Errors
    /// The token or the root cannot be used, or no front end can be reached and accepts the node.
    pub fn join(settings: NodeSettings) -> Result<Self, NodeError> {
        let token = JoinToken::load(&settings.join_token_file)?;
        let stores = Stores::posix();
        stores
            .check(&settings.root)
            .map_err(|source| NodeError::Root { path: settings.root.clone(), source })?;
        let memory = usize::try_from(settings.buffer_memory).unwrap_or(usize::MAX);
        let places = Places::of_process();
        let gsi_conf = GsiConf::load(&places.gsi_conf(), |name| std::env::var(name).ok())?;
        let shared = Arc::new(Shared {
            root: settings.root,
            stores,
            registry: Registry::standard(),
            streams: Arc::new(Pool::new("stream", 4096)),
            budget: BufferBudget::new(memory),
            data_ports: settings.data_ports,
            marks: marks::Marks::default(),
            authorities: settings.authorities.unwrap_or_else(|| places.authorities()),
            gsi: TlsSettings::from(&gsi_conf),
        });
        let announcement = Announcement {
            name: settings.name,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            addresses: settings.addresses,
            capacity: settings.capacity,
        };
        confine_node(settings.data_ports)?;
        let (member, joined) = Member::join(&settings.front_ends, token, announcement)?;
        Ok(Self { member, joined, shared })
    }

    /// Moves data until SIGTERM, which lets transfers finish, or SIGINT or a second SIGTERM, which
    /// do not.
    ///
    /// # Errors
    /// The only front end was lost, and refuses the node now; or signals cannot be handled.
    pub fn run_with_signals(self) -> Result<(), NodeError> {
        let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(NodeError::Signals)?;
        let handle = signals.handle();
        let member = Arc::clone(&self.member);
        let wait = move || {
            for signal in signals.forever() {
                if signal == SIGTERM && !member.is_draining() {
                    tracing::info!("SIGTERM: draining");
                    member.drain();
                } else {
                    member.stop();
                }
            }
        };
        let watcher =
            thread::Builder::new().name("signals".into()).spawn(wait).map_err(NodeError::Signals)?;
        let shared = self.shared;
        let serve: Arc<Serve> = Arc::new(move |link, first, lease: &SessionLease| {
            orders::serve(&shared, link, first, lease);
        });
        let result = self.member.run(self.joined, &serve);
        handle.close();
        if watcher.join().is_err() {
            tracing::error!("the signal thread has panicked");
        }
        Ok(result?)
    }
}
