//! Transport of bytes: stacks of transport drivers.
//!
//! A *driver* makes connections (TCP here; other crates have others). A *layer* wraps a connection
//! in another one. The engine uses only the trait [`Connection`]. It asks a connection for a fast
//! path, on which it can move bytes without copying them.

mod ceilings;
pub mod congestion;
mod connection;
mod driver;
mod endpoint;
#[allow(unsafe_code)]
mod flow_label;
mod flow_observer;
mod listener;
mod managed;
mod options;
pub mod ports;
mod refusals;
mod signal;
mod stats;
mod tcp;
#[allow(unsafe_code)]
mod tcp_info;
pub mod testing;
mod wait;

pub use ceilings::{BufferLimits, Ceilings, CeilingsError, least_buffers};
pub use connection::{Breaker, Connection, ConnectionHandle, FastPath, Interest, Readiness};
pub use driver::Driver;
pub use endpoint::Endpoint;
pub use flow_label::FlowLabel;
pub use flow_observer::{FlowMarking, FlowObserver, OpenFlow};
pub use listener::{Listener, TurnedDown};
pub use managed::{Managed, NetAttribute, NetChanges, NetEvent, NetEventKind, NetManager};
pub use options::{ChannelToken, Options, Tuning};
pub use refusals::{log_refused, refused};
pub use signal::Signal;
pub use stats::{Limits, PathStats};
pub use tcp::{LOCAL_BUFFER, Tcp, local_address};
pub use tcp_info::TcpInfo;
pub use wait::{Wait, WaitAlone, timespec};
