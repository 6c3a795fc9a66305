//! TLS without network I/O, for control and data connections of FTP (RFC 4217), and for GSI.
//!
//! A [`Handshake`] takes received bytes and returns the bytes to send. It ends in [`Records`],
//! which protect and read data. A server binds data connections to their control connection by
//! session resumption ([`Binding`]). A client offers the session of the control connection
//! ([`Ticket`]).

mod certificate;
mod client;
mod data;
mod fingerprint;
mod handshake;
mod keylog;
mod memory;
mod messages;
mod queue;
mod record13;
mod records;
mod revocation;
mod self_signed;
mod server;
mod shared_key;
mod sys;
mod traffic;

pub use certificate::{CertificateError, Pair};
pub use client::{Client, ClientError, ClientSettings, Distrust};
pub use data::DataRecords;
pub use fingerprint::{Fingerprint, NoFingerprint};
pub use handshake::{Established, Handshake, HandshakeError, MAX_HANDSHAKE};
pub use keylog::{allow_data, for_data};
pub use memory::Memory;
pub use openssl::ssl::SslVersion;
pub use openssl::x509::X509;
pub use records::{Opened, RECORD, RecordError, Records, Ticket, forget_errors};
pub use revocation::{RevocationError, Revocations, is_signed_by, revocation_lists};
pub use self_signed::{SelfSigned, load_or_make, make};
pub use server::{Binding, Server, ServerIdentity, ServerSecrets, ServerSettings};
pub use shared_key::SharedKey;

/// The maximum number of certificates between a peer's own and that of the authority.
const MAX_CHAIN: u32 = 32;
