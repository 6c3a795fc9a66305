//! Layers over data connections: a driver or listener wrapped in another one, whose connections are authenticated and,
//! where it is wanted, protected.
//!
//! Each kind of security is a [`Layer`] in a file of its own. A connection that is only authenticated is handed over as it is,
//! so that it keeps its plain descriptor; a protected one has none.

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
