//! The local accounts as which sessions work on files.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use nix::unistd::{Gid, getgrouplist};
use ropewalk_protocol::server::Failure;
use ropewalk_storage::Identity;
use uzers::os::unix::UserExt as _;

use crate::config::{self, AnonymousAccess, RunAs, User};

/// The account for anonymous sessions that would otherwise work as root.
const NOBODY: &str = "nobody";

/// A local account that a session may work as.
#[derive(Clone, Debug)]
pub(crate) struct LocalAccount {
    pub(crate) identity: Identity,
    pub(crate) home: PathBuf,
}

/// The account as which the user works; `None` stands for the server's own user.
///
/// `allow_root` is set if the mechanism of the log-in permits root in addition to the settings.
pub(crate) fn of_user(
    config: &config::Identity,
    user: &User,
    name: &str,
    allow_root: bool,
) -> Result<Option<LocalAccount>, Failure> {
    if !config.mapped || user.run_as == Some(RunAs::Server) {
        return Ok(None);
    }
    if !Identity::can_act() {
        // For instance after a reload: a session never works as root because the identity is not
        // available.
        if rustix::process::geteuid().is_root() {
            tracing::error!("the server may not take on identities (CAP_SETUID, CAP_SETGID); restart it");
            return Err(Failure::LoginDenied("The server cannot take on your identity.".into()));
        }
        return Ok(None);
    }
    let denied = |text: String| {
        tracing::warn!(user = name, "log-in refused: {text}");
        Failure::LoginDenied(text)
    };
    match (uzers::get_user_by_name(name), &config.unprivileged_user) {
        (Some(account), _) => {
            permitted(config, &account, name, allow_root).map_err(denied)?;
            local(&account).map(Some)
        }
        (None, Some(unprivileged)) => named(unprivileged).map(Some),
        (None, None) => {
            tracing::error!(
                user = name,
                "there is no local account of this name: add one, name identity.unprivileged_user, or set run_as = \
                 \"server\" for the user"
            );
            Err(denied(format!("There is no local account {name}.")))
        }
    }
}

/// The account as which anonymous sessions work; `None` stands for the server's own user.
pub(crate) fn of_anonymous(
    config: &config::Identity,
    access: &AnonymousAccess,
) -> Result<Option<LocalAccount>, Failure> {
    match anonymous_account(config, access) {
        Some(name) if Identity::can_act() => named(name).map(Some),
        // For instance after a reload.
        Some(_) if rustix::process::geteuid().is_root() => {
            tracing::error!("the server may not take on identities (CAP_SETUID, CAP_SETGID); restart it");
            Err(Failure::LoginDenied("The server cannot take on the identity for anonymous access.".into()))
        }
        _ => Ok(None),
    }
}

/// The name of the account as which anonymous sessions should work; `None` stands for the server's
/// own user.
pub(crate) fn anonymous_account<'a>(
    config: &'a config::Identity,
    access: &'a AnonymousAccess,
) -> Option<&'a str> {
    if !config.mapped || access.run_as == Some(RunAs::Server) {
        return None;
    }
    let nobody = rustix::process::geteuid().is_root().then_some(NOBODY);
    access.user.as_deref().or(config.unprivileged_user.as_deref()).or(nobody)
}

/// Checks whether sessions may work as an account. The messages are those of GCT where it has the
/// same check.
fn permitted(
    config: &config::Identity,
    account: &uzers::User,
    name: &str,
    allow_root: bool,
) -> Result<(), String> {
    if !is_called(account, name) {
        tracing::error!(
            user = name,
            account = ?account.name(),
            "the account that was found has another name of its own, for which settings and maps may say otherwise: log in, and map \
             to users, by that one"
        );
        return Err(format!("There is no local account {name}."));
    }
    if account.uid() == 0 {
        if !config.allow_root && !allow_root {
            return Err("User was mapped as root but root is not allowed.".into());
        }
    } else if account.uid() < config.minimum_uid && !config.allow_system {
        return Err(format!("{name} is a system account; those are not allowed."));
    }
    if !config.allow_disabled && !can_run(account.shell()) {
        return Err("Access denied, user's system account is disabled.".into());
    }
    Ok(())
}

/// Account databases may find an account by another name than its own (`ADA` for `ada`), which
/// settings and maps do not contain.
fn is_called(account: &uzers::User, name: &str) -> bool {
    account.name() == name
}

/// Whether the shell exists and can be executed; an empty name means `/bin/sh` (passwd(5)).
fn can_run(shell: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    let shell = if shell.as_os_str().is_empty() { Path::new("/bin/sh") } else { shell };
    std::fs::metadata(shell).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

/// The account for a name in the settings, which is never root.
fn named(name: &str) -> Result<LocalAccount, Failure> {
    let wrong = |what: &str| {
        tracing::error!(user = name, what, "the account for users without one cannot be used");
        Failure::LoginDenied("The account is not set up correctly.".into())
    };
    match uzers::get_user_by_name(name) {
        Some(account) if !is_called(&account, name) => Err(wrong("its own name is another")),
        Some(account) if account.uid() != 0 => local(&account),
        Some(_) => Err(wrong("it is root")),
        None => Err(wrong("there is no such account")),
    }
}

fn local(account: &uzers::User) -> Result<LocalAccount, Failure> {
    let gid = account.primary_group_id();
    let groups = CString::new(account.name().as_bytes())
        .map_err(|_| nix::errno::Errno::EINVAL)
        .and_then(|name| getgrouplist(&name, Gid::from_raw(gid)))
        .map_err(|error| {
            tracing::error!(user = ?account.name(), %error, "the user's groups cannot be had");
            Failure::LoginDenied("The account is not set up correctly.".into())
        })?;
    let groups = groups.into_iter().map(Gid::as_raw).collect();
    Ok(LocalAccount {
        identity: Identity { uid: account.uid(), gid, groups },
        home: account.home_dir().to_owned(),
    })
}

/// Checks an account name in the settings.
pub(crate) fn check(name: &str) -> Result<(), String> {
    match uzers::get_user_by_name(name) {
        None => Err(format!("there is no local account {name}")),
        Some(account) if !is_called(&account, name) => {
            Err(format!("the account's own name is {}", account.name().display()))
        }
        Some(account) if account.uid() == 0 => Err("must not be root".into()),
        Some(_) => Ok(()),
    }
}

/// The path of a home directory within a root.
pub(crate) fn home_within(root: &Path, home: &Path) -> Option<Vec<u8>> {
    let within = |root: &Path, home: &Path| {
        let rest = home.strip_prefix(root).ok()?;
        let mut path = b"/".to_vec();
        path.extend_from_slice(rest.as_os_str().as_bytes());
        Some(path)
    };
    within(root, home).or_else(|| within(&root.canonicalize().ok()?, &home.canonicalize().ok()?))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn account(name: &str, uid: u32, shell: &str) -> uzers::User {
        uzers::User::new(uid, name, uid).with_shell(shell)
    }

    #[test]
    fn root_system_and_disabled_accounts_are_refused_by_default() {
        let config = config::Identity::default();
        let refused = |config: &config::Identity, account: &uzers::User| {
            permitted(config, account, account.name().to_str().unwrap(), false).err().unwrap_or_default()
        };
        assert!(permitted(&config, &account("ada", 1000, "/bin/sh"), "ada", false).is_ok());
        assert!(permitted(&config, &account("ada", 1000, ""), "ada", false).is_ok());
        let root = account("toor", 0, "/bin/sh");
        assert!(refused(&config, &root).contains("root is not allowed"));
        assert!(permitted(&config, &root, "toor", true).is_ok());
        assert!(
            permitted(&config::Identity { allow_root: true, ..config.clone() }, &root, "toor", false).is_ok()
        );
        let system = account("www", 33, "/bin/sh");
        assert!(refused(&config, &system).contains("system account"));
        let config = config::Identity { allow_system: true, ..config };
        assert!(permitted(&config, &system, "www", false).is_ok());
        assert!(refused(&config, &root).contains("root"), "root is more than a system account");
        for shell in ["/nonexistent/shell", "/etc/passwd", "/"] {
            let disabled = account("eve", 1001, shell);
            assert!(refused(&config, &disabled).contains("disabled"), "{shell}");
            let config = config::Identity { allow_disabled: true, ..config.clone() };
            assert!(permitted(&config, &disabled, "eve", false).is_ok());
        }
    }

    #[test]
    fn account_found_by_another_name_is_refused() {
        let config = config::Identity::default();
        let ada = account("ada", 1000, "/bin/sh");
        assert!(permitted(&config, &ada, "ada", false).is_ok());
        for name in ["ADA", "Ada", "ada@example"] {
            let text = permitted(&config, &ada, name, false).unwrap_err();
            assert!(text.contains("no local account"), "{text}");
        }
    }

    #[test]
    fn home_outside_root_has_no_path() {
        let within = |root: &str, home: &str| {
            home_within(Path::new(root), Path::new(home)).map(|p| String::from_utf8(p).unwrap())
        };
        assert_eq!(within("/", "/home/ada").as_deref(), Some("/home/ada"));
        assert_eq!(within("/home", "/home/ada").as_deref(), Some("/ada"));
        assert_eq!(within("/home/ada", "/home/ada").as_deref(), Some("/"));
        assert_eq!(within("/srv", "/home/ada"), None);
    }
}
