//! The account of a session and its access to storage.

use std::sync::Arc;
use std::time::Instant;

use ropewalk_protocol::server::Failure;
use ropewalk_security::Account;
use ropewalk_storage::{Identity, Impersonation, Store};

use crate::accounts::scope::Scope;
use crate::config::RequiredProtection;
use crate::failure::failure;
use crate::host::limits::UserPermit;

/// The account of a session that is logged in.
pub(crate) struct Login {
    pub(crate) account: Account,
    /// The storage as far as the session may use it.
    pub(crate) store: Arc<dyn Store>,
    pub(crate) whole: Arc<dyn Store>,
    pub(crate) scope: Arc<Scope>,
    /// The subject and the issuer of the bearer token.
    pub(crate) vouched: Option<(String, String)>,
    /// The identity that the session works as; `None` stands for the server's own user.
    pub(crate) identity: Option<Identity>,
    pub(crate) protection: RequiredProtection,
    /// The time at which the bearer token expires. No operation starts after it.
    pub(crate) expires: Option<Instant>,
    /// Counts the session in the limits of the user.
    pub(crate) _permit: UserPermit,
}

impl Login {
    /// Lets the calling thread act for the session's user until the guard is dropped. Each call of
    /// the store does that by itself; the guard avoids the changes between calls. It must not be
    /// held while data is moved or while the thread waits for the client.
    pub(crate) fn acting(&self) -> Result<Impersonation, Failure> {
        self.whole.acting().map_err(failure)
    }

    /// The user as whom the session works on files.
    pub(crate) fn uid(&self) -> u32 {
        self.identity.as_ref().map_or_else(|| rustix::process::geteuid().as_raw(), |identity| identity.uid)
    }

    /// Fails if the account requires protection that the session does not have. `control`: the
    /// control connection is protected.
    pub(crate) fn require_protected(&self, control: bool) -> Result<(), Failure> {
        require_protected(self.protection, control)
    }
}

pub(crate) fn require_protected(required: RequiredProtection, control: bool) -> Result<(), Failure> {
    if control || required == RequiredProtection::None {
        return Ok(());
    }
    let text = "This account needs a protected control connection: send AUTH TLS or AUTH GSSAPI first.";
    Err(Failure::LoginDenied(text.into()))
}
