//! Logging in: from a name and a password to an account with its storage.

use std::path::PathBuf;
use std::sync::Arc;

use ropewalk_protocol::command::Password;
use ropewalk_protocol::path::VirtualPath;
use ropewalk_protocol::server::Failure;
use ropewalk_security::{Account, Rules, valid_user_name};
use ropewalk_storage::{Kind, Store};

use crate::config::{AnonymousAccess, User};
use crate::host::Host;
use crate::limits::UserPermit;
use crate::paths::Scope;
use crate::settings::Settings;

/// Somebody who has logged in.
pub(crate) struct Login {
    pub(crate) account: Account,
    /// As far as the session may use it.
    pub(crate) store: Arc<dyn Store>,
    pub(crate) whole: Arc<dyn Store>,
    pub(crate) scope: Arc<Scope>,
    _permit: UserPermit,
}

/// Puts a user's name into a setting.
pub(crate) fn expand(template: &str, user: &str) -> String {
    template.replace("{user}", user)
}

/// May take as long as a password's verification does.
pub(crate) fn log_in(
    host: &Host,
    settings: &Settings,
    user: &[u8],
    password: &Password,
) -> Result<Login, Failure> {
    let denied = |reason: &str| Failure::LoginDenied(reason.to_owned());
    let passwords = settings.passwords().map_err(|error| {
        tracing::error!(%error, "nobody can log in by password");
        denied("The server cannot read its password file.")
    })?;
    let account = match anonymous(settings, user, |name| {
        passwords.as_ref().is_some_and(|file| file.list().any(|known| known.as_bytes() == name))
    }) {
        Some(access) => {
            let name =
                std::str::from_utf8(user).ok().filter(|name| valid_user_name(name)).unwrap_or("anonymous");
            anonymous_account(settings, access, name)?
        }
        None => {
            let file = passwords.ok_or_else(|| denied("Access denied by configuration."))?;
            if !file.verify(user, password.expose(), &host.verifier) {
                return Err(denied("Invalid user or password."));
            }
            let name = std::str::from_utf8(user).map_err(|_| denied("Invalid user or password."))?;
            user_account(settings, name)?
        }
    };
    open(host, settings, account)
}

/// Somebody who has shown a certificate, as the gridmap has it.
pub(crate) fn log_in_mapped(
    host: &Host,
    settings: &Settings,
    subject: &str,
    user: &[u8],
) -> Result<Login, Failure> {
    let none = || Failure::LoginDenied("Access denied by configuration.".into());
    let name = settings.gsi.as_ref().ok_or_else(none)?.user(subject, user)?;
    open(host, settings, user_account(settings, &name)?)
}

/// The anonymous access that the name stands for. `*` stands for the names that nobody else has.
fn anonymous<'a>(
    settings: &'a Settings,
    user: &[u8],
    known: impl FnOnce(&[u8]) -> bool,
) -> Option<&'a AnonymousAccess> {
    let access = settings.config.anonymous.as_ref()?;
    let listed = |name: &[u8]| access.names.iter().any(|n| n.as_bytes() == name);
    (listed(user) || (listed(b"*") && !known(user))).then_some(access)
}

fn anonymous_account(settings: &Settings, access: &AnonymousAccess, name: &str) -> Result<Account, Failure> {
    let user = User {
        root: access.root.clone(),
        home: Some(access.home.clone()),
        rules: access.rules.clone(),
        read_only: Some(!access.write),
        third_party: Some(access.third_party),
        sessions: access.sessions,
    };
    account(settings, &user, name, "anonymous")
}

fn user_account(settings: &Settings, name: &str) -> Result<Account, Failure> {
    let config = &settings.config;
    let user =
        config.users.get(name).map_or_else(|| config.defaults.clone(), |user| user.or(&config.defaults));
    account(settings, &user, name, name)
}

/// `counted_as` is a name in the limits.
fn account(settings: &Settings, user: &User, name: &str, counted_as: &str) -> Result<Account, Failure> {
    let wrong = |what: &str| {
        tracing::error!(user = name, what, "the account's settings are wrong");
        Failure::LoginDenied("The account is not set up correctly.".into())
    };
    let root = user.root.as_ref().or(settings.config.root.as_ref()).ok_or_else(|| wrong("root"))?;
    let root = match root.to_str() {
        Some(root) => PathBuf::from(expand(root, name)),
        None => root.clone(),
    };
    let home = expand(user.home.as_deref().unwrap_or("/"), name);
    let home = VirtualPath::parse(home.as_bytes()).map_err(|_| wrong("home"))?;
    let mut rules = Vec::new();
    for list in [settings.config.rules.as_deref(), user.rules.as_deref()].into_iter().flatten() {
        rules.push(Rules::parse(list.as_bytes(), &home).map_err(|_| wrong("rules"))?);
    }
    Ok(Account {
        name: name.to_owned(),
        counted_as: counted_as.to_owned(),
        root,
        home,
        rules,
        read_only: user.read_only.unwrap_or(false),
        third_party: user.third_party.unwrap_or(true),
        sessions: user.sessions,
    })
}

fn open(host: &Host, settings: &Settings, mut account: Account) -> Result<Login, Failure> {
    let limit = account.sessions.unwrap_or(settings.config.limits.sessions_per_user);
    let Some(permit) = host.limits.admit_user(&account.counted_as, limit) else {
        return Err(Failure::Busy("Too many sessions of this user. Please try again later.".into()));
    };
    let store = host.stores.open(&account.root).map_err(|error| {
        tracing::error!(user = account.name, root = %account.root.display(), %error, "cannot open the user's directory");
        Failure::LoginDenied("The user's directory cannot be opened.".into())
    })?;
    let home = store.stat(&account.home, true);
    if !home.is_ok_and(|home| home.kind == Kind::Directory) {
        tracing::warn!(user = account.name, home = %account.home, "no such directory; the session begins in /");
        account.home = VirtualPath::root();
    }
    let scope = Scope {
        root: VirtualPath::root(),
        rules: account.rules.clone(),
        restriction: Rules::default(),
        read_only: account.read_only,
    };
    let whole = Arc::clone(&store);
    let mut login = Login { account, store, whole, scope: Arc::new(scope.clone()), _permit: permit };
    login.set_scope(scope);
    Ok(login)
}
