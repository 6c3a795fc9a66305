//! A [`Store`] whose bytes are behind another (Grid)FTP server.
//!
//! A [`RemoteStore`] is one log-in at one far server. It uses the sessions and data channels of the
//! client library. Data streams through bounded windows in memory: reads are fetched ahead, and
//! uploads are sent on while they arrive; a slow side holds up the other. An upload is one of the far
//! server, and what it reports as stored is what the far server has on its disk. Operations of any
//! thread block; errors are those of the far server.

#![forbid(unsafe_code)]

mod memory;
mod metadata;
mod pump;
mod read;
mod store;
mod targets;
mod upload;
mod window;
mod write;

use std::sync::Arc;

pub use ropewalk_client::far::{Behalf, Delegated, Gate};
use ropewalk_client::{Client, ClientLimits, Options};
pub use store::RemoteStore;
pub use targets::{InvalidTarget, Targets};

use crate::memory::Memory;

/// Shared by the stores of a program: idle sessions, threads, and the memory for windows.
pub struct RemoteClient {
    client: Client,
    memory: Arc<Memory>,
}

impl RemoteClient {
    /// `memory`: bytes for the windows of all open files together; each gets at least 1 MiB.
    pub fn new(limits: &ClientLimits, memory: usize) -> Arc<Self> {
        Arc::new(Self { client: Client::new(limits), memory: Memory::new(memory) })
    }
}

/// How a store uses its server.
#[derive(Clone, Default)]
pub struct RemoteSettings {
    /// Credentials, trust, time limits, streams.
    pub options: Options,
    /// All stores of a [`RemoteClient`] need the same gate.
    pub behalf: Behalf,
}
