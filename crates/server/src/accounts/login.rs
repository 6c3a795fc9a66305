//! The account of a session and its access to storage.

use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use ropewalk_protocol::server::Failure;
use ropewalk_security::Account;
use ropewalk_storage::{Identity, Impersonation, Program, Store};

use crate::accounts::scope::Scope;
use crate::config::RequiredProtection;
use crate::failure::failure;
use crate::host::limits::UserPermit;
use crate::host::space::Drawing;
use crate::relay::Hops;

/// The name in limits of all anonymous accounts.
pub(crate) const ANONYMOUS: &str = "anonymous";

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
    /// SITE SETDISKSTACK: the program that stands for the files of transfers.
    pub(crate) program: Option<Program>,
    /// SITE SPACE USE: the reservation that uploads draw on.
    pub(crate) drawing: Drawing,
    /// SITE SLOTS USE: the token of the reservation that transfers use.
    pub(crate) slots: Mutex<Option<Arc<str>>>,
    /// Other servers, if the session may use a relay.
    pub(crate) hops: Option<Arc<Hops>>,
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

    /// The reason why the session may run no programs, which see what its user sees, and not what
    /// the account is limited to. `root`: the settings let users log in as root.
    pub(crate) fn refuses_programs(&self, root: bool) -> Option<&'static str> {
        let scope = &*self.scope;
        let limited = !scope.rules.is_empty() || scope.token.is_some() || scope.is_narrowed();
        match () {
            () if self.account.counted_as == ANONYMOUS => Some("anonymous users run no programs"),
            () if scope.read_only => Some("a read-only account runs no programs"),
            () if limited => Some("an account that is limited to some paths runs no programs"),
            () if self.uid() == 0 && !root => Some("root runs no programs"),
            () => None,
        }
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
