//! GSSAPI (RFC 2744) as safe Rust: each handle is released by its owner.

mod buffer;
mod context;
mod credential;
mod library;
mod name;
mod status;

pub(crate) use context::{Context, Flags};
pub use credential::Credential;
pub(crate) use name::{Name, NameKind};
pub use status::GssError;

/// Whether the Kerberos library is there; the text says what is missing.
///
/// # Errors
/// It cannot be loaded.
pub fn available() -> Result<(), crate::KerberosError> {
    library::get().map(drop)
}
