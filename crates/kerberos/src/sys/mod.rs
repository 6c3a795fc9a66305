//! Safe wrappers of GSSAPI (RFC 2744): each handle has one owner, which releases it.

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

/// Checks that the Kerberos library can be loaded.
///
/// # Errors
/// It cannot be loaded; the text says what is missing.
pub fn available() -> Result<(), crate::KerberosError> {
    library::get().map(drop)
}
