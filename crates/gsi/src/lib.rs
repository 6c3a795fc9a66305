//! Grid Security Infrastructure: certificates, proxies and their delegation, and handshakes as
//! GSSAPI tokens (RFC 2228, RFC 3820, GFD.20 section 3.1). The bytes are the same as those of the
//! Grid Community Toolkit (GCT).
//!
//! This crate does no network I/O: the caller passes received tokens in and sends the tokens that
//! come out.

#![forbid(unsafe_code)]

pub mod ca;
mod certificate;
mod chain_error;
mod control;
mod credential;
pub mod dcsc;
mod delegation;
mod der;
mod gridmap;
mod gsi_conf;
mod handshake;
mod host;
mod keys;
mod name;
mod oid;
mod pool;
pub mod proxy_file;
mod proxy_info;
mod search;
mod session;
mod signing_policy;
pub mod testing;
mod time;
mod tls;
mod trust;
pub mod validity;
mod verify;
mod virtual_hosts;
mod voms;
mod voms_check;

pub use openssl::ssl::SslVersion;
pub use openssl::x509::X509;

pub use certificate::Details;
pub use chain_error::ChainError;
pub use control::{decode_token, encode_token};
pub use credential::{AskPassphrase, Credential, CredentialError};
pub use delegation::{DelegationError, ProxyRequest, ProxyTerms, create_proxy, sign_request};
pub use der::DerError;
pub use gridmap::{Account, Gridmap, GridmapProblem};
pub use gsi_conf::{GsiConf, GsiConfError};
pub use handshake::{Acceptor, AcceptorOptions, After, HandshakeError, Initiator, InitiatorOptions, Step};
pub use host::{Expected, NameCompatibility, WrongPeer, is_host};
pub use keys::{DelegatedKeys, KeyPool};
pub use name::{canonical, one_line, same};
pub use pool::{PoolError, lease};
pub use proxy_info::{ProxyKind, Rights};
pub use search::{Places, Source};
pub use session::{Protection, Session, SessionError};
pub use signing_policy::{PolicyError, SigningPolicy};
pub use time::Timestamp;
pub use tls::{Identity, TlsSettings};
pub use trust::Trust;
pub use verify::{MAX_CHAIN, Peer};
pub use virtual_hosts::{VirtualHostError, virtual_hosts};
pub use voms::{VomsClaim, parse_voms, voms_claims};
pub use voms_check::VomsError;
