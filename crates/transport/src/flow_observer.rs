//! The interface of an observer of data connections, which the engine calls.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use crate::{ConnectionHandle, FlowLabel};

/// The marks of data connections that begin from now on.
#[derive(Clone, Debug, Default)]
pub struct FlowMarking {
    /// See [`Options::flow_label`](crate::Options::flow_label).
    pub label: Option<FlowLabel>,
    pub observer: Option<Arc<dyn FlowObserver>>,
}

/// Learns of data connections that carry a transfer. It is called on the threads that move data and
/// must not wait.
pub trait FlowObserver: fmt::Debug + Send + Sync {
    /// A connection carries its first transfer. The returned value is dropped before the connection
    /// is closed.
    fn opened(&self, flow: OpenFlow) -> Box<dyn Send>;
}

/// A data connection between two internet addresses.
pub struct OpenFlow {
    pub local: SocketAddr,
    pub peer: SocketAddr,
    /// This end receives the data.
    pub receiving: bool,
    /// Bytes that went through the connection, with headers.
    pub bytes: Arc<AtomicU64>,
    pub handle: Arc<dyn ConnectionHandle>,
}
