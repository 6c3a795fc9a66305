//! Security layers for data connections. A [`SecureDriver`] or [`SecureListener`] wraps another
//! driver or listener and authenticates its connections and, if configured, protects their data.
//!
//! Each kind of security is a [`Layer`] in its own file. A connection that is only authenticated is
//! handed over unwrapped, so that it keeps its plain descriptor. A protected connection has no
//! plain descriptor.

#![forbid(unsafe_code)]

mod driver;
mod gsi;
mod kerberos;
mod key;
mod layer;
mod listener;
mod outgoing;
mod protected;
mod reader;
mod tls;

pub use driver::SecureDriver;
pub use gsi::GsiLayer;
pub use kerberos::KerberosLayer;
pub use key::{KeyLayer, fresh_key};
pub use layer::{Handshake, Layer, Level, Progress};
pub use listener::SecureListener;
pub use tls::{Peer, TlsLayer};
