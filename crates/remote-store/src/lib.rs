//! A [`Store`] whose bytes are behind another (Grid)FTP server.
//!
//! A [`RemoteStore`] is one log-in at one far server. It uses the sessions and data channels of the
//! client library. Data passes through bounded windows in memory: reads are fetched ahead, and
//! uploads are forwarded while they arrive; a slow side delays the other, unless there is a
//! [`Spool`] on disk that takes what the memory cannot. An upload to the store is an upload at the
//! far server, and data counts as stored when the far server has it on its disk. All operations
//! block, and any thread may call them; errors are those of the far server.

#![forbid(unsafe_code)]

mod checksum;
mod memory;
mod metadata;
mod pump;
mod read;
mod spool;
mod store;
mod targets;
mod upload;
mod window;
mod write;

use std::sync::Arc;

pub use ropewalk_client::far::{Behalf, Delegated, Gate};
use ropewalk_client::{Client, ClientLimits, Options};
pub use spool::Spool;
pub use store::RemoteStore;
pub use targets::{InvalidTarget, Targets};

use crate::memory::Memory;

/// The resources that the stores of a program share: idle sessions, threads, and the memory for
/// windows.
pub struct RemoteClient {
    client: Client,
    memory: Arc<Memory>,
}

impl RemoteClient {
    /// `memory` is the number of bytes for the windows of all open files together; each window gets
    /// at least 1 MiB. Data for which there is no room in it goes to `spool`.
    pub fn new(limits: &ClientLimits, memory: usize, spool: Option<Arc<Spool>>) -> Arc<Self> {
        Arc::new(Self { client: Client::new(limits), memory: Memory::new(memory, spool) })
    }
}

/// The settings with which a store uses its server.
#[derive(Clone, Default)]
pub struct RemoteSettings {
    /// Credentials, trust, timeouts and streams.
    pub options: Options,
    /// All stores of a [`RemoteClient`] need the same gate.
    pub behalf: Behalf,
}
