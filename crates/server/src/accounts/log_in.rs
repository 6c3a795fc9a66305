//! Log-in: from a name and a proof to an account with its storage.
//!
//! These functions run on threads for log-ins, since they can take as long as a password check or a
//! directory service. They return a [`Login`], which holds the user's permit, or the failure for
//! the client.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use parking_lot::Mutex;
use ropewalk_protocol::command::Password;
use ropewalk_protocol::path::VirtualPath;
use ropewalk_protocol::server::Failure;
use ropewalk_remote_store::Delegated;
use ropewalk_security::{Account, Rules, valid_user_name};
use ropewalk_storage::Kind;
use ropewalk_tokens::LEEWAY;

use crate::accounts::identity::{self, LocalAccount};
use crate::accounts::login::{ANONYMOUS, Login, require_protected};
use crate::accounts::scope::Scope;
use crate::accounts::virtual_devices::VirtualDevices;
use crate::config::{AnonymousAccess, RequiredProtection, User, expand};
use crate::host::Host;
use crate::host::space::Drawing;
use crate::host::stores::{Credential, StoreLogin};
use crate::settings::Settings;

/// An account with the settings that belong to it.
struct Found {
    account: Account,
    local: Option<LocalAccount>,
    protection: RequiredProtection,
}

/// Fails before the password for `user` is checked, with the same answer for right and wrong
/// passwords.
pub(crate) fn require_protected_for(settings: &Settings, user: &[u8], control: bool) -> Result<(), Failure> {
    require_protected(required_protection(settings, user), control)
}

fn required_protection(settings: &Settings, user: &[u8]) -> RequiredProtection {
    let config = &settings.config;
    let is = |name: &String| name.as_bytes() == user;
    if let Some(access) = config.anonymous.as_ref().filter(|access| access.names.iter().any(is)) {
        return access.protection;
    }
    let own = config.users.iter().find(|(name, _)| is(name)).and_then(|(_, user)| user.protection);
    own.or(config.defaults.protection).unwrap_or_default()
}

/// This takes as long as the verification of a password.
pub(crate) fn by_password(
    host: &Host,
    settings: &Settings,
    user: &[u8],
    password: &Password,
    target: Option<&str>,
) -> Result<Login, Failure> {
    let denied = |reason: &str| Failure::LoginDenied(reason.to_owned());
    if host.stores.passwords {
        let name = std::str::from_utf8(user).map_err(|_| denied("Invalid user or password."))?;
        return as_user(host, settings, name, Credential::Password(password), target);
    }
    let passwords = settings.passwords().map_err(|error| {
        tracing::error!(%error, "nobody can log in by password");
        denied("The server cannot read its password file.")
    })?;
    let (found, credential) = match anonymous(settings, user, |name| {
        passwords.as_ref().is_some_and(|file| file.list().any(|known| known.as_bytes() == name))
    }) {
        Some(access) => {
            let name =
                std::str::from_utf8(user).ok().filter(|name| valid_user_name(name)).unwrap_or("anonymous");
            (anonymous_account(settings, access, name)?, Credential::Anonymous)
        }
        None => {
            let file = passwords.ok_or_else(|| denied("Access denied by configuration."))?;
            if !file.verify(user, password.expose(), &host.verifier) {
                return Err(denied("Invalid user or password."));
            }
            let name = std::str::from_utf8(user).map_err(|_| denied("Invalid user or password."))?;
            (user_account(settings, name, false)?, Credential::Password(password))
        }
    };
    open(host, settings, found, credential, target)
}

/// Logs in a client that has proved in another way (a principal, a token, a certificate) that it
/// may be the user `name`. The settings of this user apply. The caller narrows the scope afterwards
/// if the session may do less ([`Login::set_scope`]).
pub(crate) fn as_user(
    host: &Host,
    settings: &Settings,
    name: &str,
    credential: Credential<'_>,
    target: Option<&str>,
) -> Result<Login, Failure> {
    if !valid_user_name(name) {
        return Err(Failure::LoginDenied("This cannot be a user's name.".into()));
    }
    open(host, settings, user_account(settings, name, false)?, credential, target)
}

/// Logs in the user as whom the process runs, and whom sshd has let in. The settings of this user
/// apply.
pub(crate) fn over_ssh(host: &Host, settings: &Settings, name: &str) -> Result<Login, Failure> {
    open(host, settings, ssh_account(settings, name)?, Credential::Ssh, None)
}

/// Logs in a client that has presented a certificate, as the gridmap maps it. `delegated` is the
/// credential that it delegated.
pub(crate) fn by_certificate(
    host: &Host,
    settings: &Settings,
    (subject, delegated): (&str, Option<Delegated>),
    user: &[u8],
) -> Result<Login, Failure> {
    let none = || Failure::LoginDenied("Access denied by configuration.".into());
    let name = settings.gsi.as_ref().ok_or_else(none)?.user(subject, user)?;
    let allow_root = settings.config.gsi.as_ref().is_some_and(|gsi| gsi.allow_root);
    let found = user_account(settings, &name, allow_root)?;
    open_delegated(host, settings, found, (Credential::Certificate(subject), delegated), None)
}

/// Logs in a client that has presented a ticket.
pub(crate) fn by_ticket(
    host: &Host,
    settings: &Settings,
    principal: &str,
    user: &[u8],
) -> Result<Login, Failure> {
    let none = || Failure::LoginDenied("Access denied by configuration.".into());
    let name = settings.kerberos.as_ref().ok_or_else(none)?.user(principal, user)?;
    let allow_root = settings.config.kerberos.as_ref().is_some_and(|kerberos| kerberos.allow_root);
    open(host, settings, user_account(settings, &name, allow_root)?, Credential::Ticket(principal), None)
}

/// This takes as long as fetching the keys of an issuer. `session` is the number of the session and
/// the address of its client.
pub(crate) fn by_token(
    host: &Host,
    settings: &Settings,
    session: (u64, SocketAddr),
    secured: bool,
    token: &Password,
) -> Result<Login, Failure> {
    let (id, peer) = session;
    let denied = |text: String| Failure::LoginDenied(text);
    // The session has refused this at USER already.
    if !secured {
        return Err(denied("A bearer token is taken on a protected control connection only.".into()));
    }
    let authority = settings.tokens.as_ref();
    let authority = authority.ok_or_else(|| denied("This server takes no bearer tokens.".into()))?;
    let now = SystemTime::now();
    let (grant, issuer, base) = authority.verify(token.expose(), now)?;
    let capabilities = &grant.capabilities;
    // Capabilities for other services count as capabilities: the groups, and thus the rights of the
    // user, apply only to tokens that contain no capability at all.
    if capabilities.is_empty() && (issuer.scopes_required || capabilities.are_stated()) {
        return Err(denied(
            "The bearer token is refused: it has no scope of storage (storage.read:/path, read:/path), and so permits nothing \
             here."
                .into(),
        ));
    }
    let Some(user) = issuer.user_of(&grant) else {
        return Err(denied(format!(
            "No user is set up here for the subject {:?} of {}.",
            grant.subject, grant.issuer
        )));
    };
    let mut login = as_user(host, settings, user, Credential::Token(token), None)?;
    login.vouched = Some((grant.subject.clone(), grant.issuer.clone()));
    login.account.third_party &= issuer.third_party;
    let left = (grant.expires + LEEWAY).duration_since(now).unwrap_or_default();
    login.expires = Instant::now().checked_add(left);
    tracing::info!(
        session = id, %peer, user, issuer = grant.issuer, subject = grant.subject,
        token = grant.id, rights = %grant.capabilities, valid = ?left, "bearer token accepted"
    );
    if !grant.capabilities.is_empty() {
        let capabilities = Arc::new(grant.capabilities.beneath(base));
        login.set_scope(Scope { token: Some(capabilities), ..(*login.scope).clone() });
    }
    Ok(login)
}

/// Whether a client that logs in by this name proves nothing by it.
pub(crate) fn is_anonymous(settings: &Settings, user: &[u8]) -> bool {
    let passwords = settings.passwords().ok().flatten();
    let known = |name: &[u8]| {
        passwords.as_ref().is_some_and(|file| file.list().any(|known| known.as_bytes() == name))
    };
    anonymous(settings, user, known).is_some()
}

/// The anonymous access that the name selects. `*` stands for all names that no user has.
fn anonymous<'a>(
    settings: &'a Settings,
    user: &[u8],
    known: impl FnOnce(&[u8]) -> bool,
) -> Option<&'a AnonymousAccess> {
    let access = settings.config.anonymous.as_ref()?;
    let listed = |name: &[u8]| access.names.iter().any(|n| n.as_bytes() == name);
    (listed(user) || (listed(b"*") && !known(user))).then_some(access)
}

fn anonymous_account(settings: &Settings, access: &AnonymousAccess, name: &str) -> Result<Found, Failure> {
    let user = User {
        root: access.root.clone(),
        home: Some(access.home.clone()),
        rules: access.rules.clone(),
        read_only: Some(!access.write),
        third_party: Some(access.third_party),
        sessions: access.sessions,
        run_as: access.run_as,
        protection: Some(access.protection),
    };
    let local = identity::of_anonymous(&settings.config.identity, access)?;
    account(settings, &user, name, ANONYMOUS, local)
}

fn user_account(settings: &Settings, name: &str, allow_root: bool) -> Result<Found, Failure> {
    let user = settings_of(settings, name);
    let local = identity::of_user(&settings.config.identity, &user, name, allow_root)?;
    account(settings, &user, name, name, local)
}

/// Some systems have user names that are not valid here (`DOMAIN\ada`). They are harmless except as
/// part of a path.
fn ssh_account(settings: &Settings, name: &str) -> Result<Found, Failure> {
    let user = settings_of(settings, name);
    let root = user.root.as_ref().or(settings.config.root.as_ref());
    let in_path = root.is_some_and(|root| root.to_string_lossy().contains("{user}"))
        || user.home.as_ref().is_some_and(|home| home.contains("{user}"))
        || [&settings.config.rules, &user.rules].into_iter().flatten().any(|rules| rules.contains("{user}"));
    if name.contains(char::is_control) || in_path && !valid_user_name(name) {
        return Err(Failure::LoginDenied("This cannot be a user's name.".into()));
    }
    user_account(settings, name, false)
}

fn settings_of(settings: &Settings, name: &str) -> User {
    let config = &settings.config;
    config.users.get(name).map_or_else(|| config.defaults.clone(), |user| user.or(&config.defaults))
}

/// `counted_as` is the name for the limits.
fn account(
    settings: &Settings,
    user: &User,
    name: &str,
    counted_as: &str,
    local: Option<LocalAccount>,
) -> Result<Found, Failure> {
    let wrong = |what: &str| {
        tracing::error!(user = name, what, "the account's settings are wrong");
        Failure::LoginDenied("The account is not set up correctly.".into())
    };
    let process_home = settings.config.identity.own_home.as_deref();
    let own_home = local.as_ref().map(|local| local.home.as_path()).or(process_home);
    let root = match user.root.as_ref().or(settings.config.root.as_ref()) {
        Some(root) => match root.to_str() {
            Some(root) => PathBuf::from(expand(root, name, own_home)),
            None => root.clone(),
        },
        // The permissions of the system determine what such a user may do.
        None if local.is_some() => PathBuf::from("/"),
        None => return Err(wrong("root")),
    };
    let home = match &user.home {
        Some(home) => expand(home, name, own_home).into_bytes(),
        None => own_home.and_then(|home| identity::home_within(&root, home)).unwrap_or_else(|| b"/".to_vec()),
    };
    let home = VirtualPath::parse(&home).map_err(|_| wrong("home"))?;
    let mut rules = Vec::new();
    for list in [settings.config.rules.as_deref(), user.rules.as_deref()].into_iter().flatten() {
        // User names contain no character with a meaning in rules.
        let list = expand(list, name, None);
        rules.push(Rules::parse(list.as_bytes(), &home).map_err(|_| wrong("rules"))?);
    }
    if rules.iter().filter(|rules| rules.has_aliases()).count() > 1 {
        return Err(wrong("rules: aliases in both lists"));
    }
    let account = Account {
        name: name.to_owned(),
        counted_as: counted_as.to_owned(),
        root,
        home,
        rules,
        read_only: user.read_only.unwrap_or(false),
        third_party: user.third_party.unwrap_or(true),
        sessions: user.sessions,
    };
    Ok(Found { account, local, protection: user.protection.unwrap_or_default() })
}

fn open(
    host: &Host,
    settings: &Settings,
    found: Found,
    credential: Credential<'_>,
    target: Option<&str>,
) -> Result<Login, Failure> {
    open_delegated(host, settings, found, (credential, None), target)
}

fn open_delegated(
    host: &Host,
    settings: &Settings,
    found: Found,
    (credential, delegated): (Credential<'_>, Option<Delegated>),
    target: Option<&str>,
) -> Result<Login, Failure> {
    let Found { mut account, local, protection } = found;
    // Other stores take care of identities themselves.
    let identity = local.map(|local| local.identity).filter(|_| host.stores.have_identities());
    let limit = account.sessions.unwrap_or(settings.config.limits.sessions_per_user);
    let Some(permit) = host.limits.admit_user(&account.counted_as, limit) else {
        return Err(Failure::Busy("Too many sessions of this user. Please try again later.".into()));
    };
    let login = StoreLogin { user: &account.name, root: &account.root, target, credential };
    let store = host.stores.open(&login, identity.as_ref()).map_err(|error| {
        if host.stores.targets {
            // The store is behind another server, and the text says why the log-in there failed.
            let reason = error.detail().unwrap_or("The target cannot be used.");
            return Failure::LoginDenied(reason.to_owned());
        }
        tracing::error!(user = account.name, root = %account.root.display(), %error, "cannot open the user's directory");
        Failure::LoginDenied("The user's directory cannot be opened.".into())
    })?;
    let drawing = Drawing::default();
    let store = match &host.space {
        Some(space) if host.stores.have_identities() => {
            space.over(store, &account.root, &account.counted_as, identity.is_none(), &drawing)
        }
        _ => store,
    };
    let profiling = &settings.config.profiling;
    let store = if profiling.permits(&account.counted_as) { VirtualDevices::over(store) } else { store };
    let relay = host.relay.as_ref().filter(|_| settings.config.relay.permits(&account.counted_as));
    let (store, hops) = match relay {
        None => (store, None),
        Some(relay) => {
            let (store, hops) = relay.over(store, delegated);
            (store, Some(hops))
        }
    };
    let trouble = match store.stat(&account.home, true) {
        Ok(home) if home.kind == Kind::Directory => None,
        Ok(_) => Some("it is no directory".to_owned()),
        Err(error) => Some(error.to_string()),
    };
    if let Some(error) = trouble {
        tracing::warn!(user = account.name, home = %account.home, error, "the session begins in /");
        account.home = VirtualPath::root();
    }
    let scope = Scope {
        root: VirtualPath::root(),
        base: VirtualPath::root(),
        rules: account.rules.clone(),
        restriction: Rules::default(),
        read_only: account.read_only,
        token: None,
    };
    let whole = Arc::clone(&store);
    let scoped = Arc::new(scope.clone());
    let mut login = Login {
        account,
        store,
        whole,
        scope: scoped,
        vouched: None,
        identity,
        protection,
        expires: None,
        program: None,
        drawing,
        slots: Mutex::default(),
        hops,
        _permit: permit,
    };
    login.set_scope(scope);
    Ok(login)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::unix::net::UnixStream;
    use std::path::Path;

    use ropewalk_security::Access;

    use super::*;
    use crate::config::Config;
    use crate::host::stores::Stores;
    use crate::ssh::{self, SshClient};

    /// The account of a session over ssh of `user` with this home directory.
    fn over_ssh(config: &str, user: &str, home: &Path) -> Result<Account, Failure> {
        let (control, _) = UnixStream::pair().unwrap();
        let (peer, local) = SshClient::addresses(|_| None);
        let client = SshClient { control, peer, local, user: user.into(), told: true, home: home.to_owned() };
        let config = ssh::prepare(Config::parse(config).unwrap(), &client);
        let settings = Settings::prepare(config, &Stores::posix(), false).unwrap();
        ssh_account(&settings, user).map(|found| found.account)
    }

    #[test]
    fn ssh_session_starts_in_home_of_user() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        let home = root.join("ada");
        let path = |text: &str| VirtualPath::parse(text.as_bytes()).unwrap();
        let text = format!("root = {root:?}\n[defaults]\nrules = \"RW~,R/public\"\n");
        let account = over_ssh(&text, "ada", &home).unwrap();
        assert_eq!(account.home, path("/ada"));
        let may = |at: &str, access| account.rules.iter().all(|rules| rules.allow(&path(at), access));
        assert!(may("/ada/f", Access::Write) && may("/public/f", Access::Read));
        assert!(!may("/bob/f", Access::Read) && !may("/public/f", Access::Write));
        let text = format!("root = {root:?}\n[defaults]\nrules = \"RW/{{user}}/own\"\n");
        let account = over_ssh(&text, "ada", &home).unwrap();
        let may = |at: &str| account.rules.iter().all(|rules| rules.allow(&path(at), Access::Write));
        assert!(may("/ada/own/f") && !may("/{user}/own/f") && !may("/ada/f"));
        // The same for settings of the user, and for the home directory as root.
        let text = format!("[users.ada]\nroot = {root:?}\n");
        assert_eq!(over_ssh(&text, "ada", &home).unwrap().home, path("/ada"));
        let account = over_ssh("[defaults]\nroot = \"{home}\"\n", "ada", &home).unwrap();
        assert_eq!((account.root, account.home), (home.clone(), path("/")));
        let account = over_ssh("", "ada", &home).unwrap();
        assert_eq!((account.root, account.home), ("/".into(), path(home.to_str().unwrap())));
    }

    #[test]
    fn ssh_user_with_unusual_name_is_accepted() {
        let home = Path::new("/home/ada");
        for name in [r"DOMAIN\ada", "host$", "ada of example", ".ada"] {
            assert_eq!(over_ssh("", name, home).unwrap().name, name);
            // A path cannot contain every name.
            for setting in ["root = \"/srv/{user}\"", "home = \"/{user}\"", "rules = \"RW/{user}\""] {
                let refused = over_ssh(&format!("[defaults]\n{setting}\n"), name, home);
                assert!(matches!(refused, Err(Failure::LoginDenied(_))), "{name} {setting}");
            }
        }
        assert!(over_ssh("", "ada\r\nbob", home).is_err());
        assert!(over_ssh("[defaults]\nhome = \"/{user}\"\n", "ada", home).is_ok());
    }
}
