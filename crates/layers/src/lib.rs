//! Stacks of drivers and layers for data connections.
//!
//! A [`Layer`] secures or shapes connections; each kind is in its own file. A [`LayeredDriver`] or
//! [`LayeredListener`] puts one over another driver or listener. A [`StackBuilder`] puts a whole
//! stack together, from the stack string that a user or a client has chosen, the security of the
//! session, and the drivers and layers of a [`Registry`].
//!
//! A connection that is only authenticated is handed over unwrapped, so that it keeps its fast
//! path. A protected connection has none.

#![forbid(unsafe_code)]

mod builder;
mod driver;
mod gsi;
mod kerberos;
mod key;
mod layer;
mod listener;
mod one_port;
mod outgoing;
mod protected;
mod quic_port;
mod rate;
mod reader;
mod registry;
mod tls;

pub use builder::{Policy, Refusal, SessionSecurity, Stack, StackBuilder, StackError};
pub use driver::LayeredDriver;
pub use gsi::GsiLayer;
pub use kerberos::KerberosLayer;
pub use key::{KeyLayer, fresh_key};
pub use layer::{Assurance, Handshake, Layer, Level, Progress};
pub use listener::LayeredListener;
pub use one_port::{ControlPort, NotRouted, Router};
pub use quic_port::QuicPort;
pub use rate::RateLayer;
pub use registry::{MakeLayer, Registry};
pub use tls::{Peer, TlsLayer};
