//! The account of a session and what the session may use of its storage.

use std::sync::Arc;
use std::time::Instant;

use ropewalk_protocol::server::Failure;
use ropewalk_security::Account;
use ropewalk_storage::{Acting, Identity, Store};

use crate::accounts::scope::Scope;
use crate::config::RequiredProtection;
use crate::failure::failure;
use crate::host::limits::UserPermit;

/// Somebody who has logged in.
pub(crate) struct Login {
    pub(crate) account: Account,
    /// As far as the session may use it.
    pub(crate) store: Arc<dyn Store>,
    pub(crate) whole: Arc<dyn Store>,
    pub(crate) scope: Arc<Scope>,
    /// What a token's issuer says of its bearer, and the issuer.
    pub(crate) vouched: Option<(String, String)>,
    /// Who the session works as; `None`: the server's own user.
    pub(crate) identity: Option<Identity>,
    pub(crate) protection: RequiredProtection,
    /// When a bearer token ends, and with it what may be begun.
    pub(crate) expires: Option<Instant>,
    /// Counts the session in the limits of the user.
    pub(crate) _permit: UserPermit,
}

impl Login {
    /// Has the calling thread act for the session's user until the guard is dropped. Every call of the store does so by
    /// itself; this saves changing back and forth. Not to be held while data is moved or the client waited for.
    pub(crate) fn acting(&self) -> Result<Acting, Failure> {
        self.whole.acting().map_err(failure)
    }

    /// As whom the session works on files.
    pub(crate) fn uid(&self) -> u32 {
        self.identity.as_ref().map_or_else(|| rustix::process::geteuid().as_raw(), |identity| identity.uid)
    }

    /// Whether what the account requires to be protected is so. `control`: the control connection is.
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
