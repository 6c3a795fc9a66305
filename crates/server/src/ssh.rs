//! One session over ssh. sshd has authenticated the client, and this process runs as that user.
//!
//! As with GCT's server and `-ssh`, the arguments of USER and PASS are ignored. The server ends
//! with the session.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use mio::net::UnixStream as Stream;
use ropewalk_security::canonical;
use uzers::os::unix::UserExt as _;

use crate::config::{Admin, Config, Problem, Severity};
use crate::error::{Error, Result};
use crate::scheduling::admission;
use crate::scheduling::runner;
use crate::server::{Backends, Server};
use crate::signals::Watcher;

/// The client that sshd has authenticated.
#[derive(Debug)]
pub struct SshClient {
    /// The control connection.
    pub control: UnixStream,
    /// The client's address, for data connections to it.
    pub peer: SocketAddr,
    /// The address of this host to which the client connected.
    pub local: SocketAddr,
    /// The user as whom this process runs, and whose settings apply.
    pub user: String,
    /// Whether the user is known to be the one that was authenticated; otherwise it is the first
    /// user with the number of this process.
    pub told: bool,
    pub home: PathBuf,
}

impl SshClient {
    /// The client at the other end of `control`, from what sshd and the system know of this
    /// process.
    pub fn of_process(control: UnixStream) -> Self {
        let (peer, local) = Self::addresses(|name| std::env::var(name).ok());
        let uid = rustix::process::geteuid().as_raw();
        // Several accounts may have the same number, and the restrictions of one of them do not
        // apply to the others.
        let told = ["LOGNAME", "USER"].into_iter().find_map(|variable| {
            let name = std::env::var_os(variable)?;
            let account = uzers::get_user_by_name(&name)?;
            (account.uid() == uid && account.name() == name).then_some(account)
        });
        let (account, told) = match told {
            Some(account) => (Some(account), true),
            None => (uzers::get_user_by_uid(uid), false),
        };
        let name = account.as_ref().map(|account| account.name().to_string_lossy().into_owned());
        let home = std::env::var_os("HOME").map(PathBuf::from).filter(|home| home.is_absolute());
        let home = home.or_else(|| account.map(|account| account.home_dir().to_owned()));
        let (user, home) = (name.unwrap_or_else(|| uid.to_string()), home.unwrap_or_else(|| "/".into()));
        Self { control, peer, local, user, told, home }
    }

    /// The addresses from the environment that sshd sets: `SSH_CONNECTION` (client's address and
    /// port, server's address and port), or `SSH_CLIENT` (the same without the server's address).
    /// Loopback if neither is set.
    pub fn addresses(variable: impl Fn(&str) -> Option<String>) -> (SocketAddr, SocketAddr) {
        let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let told = variable("SSH_CONNECTION").or_else(|| variable("SSH_CLIENT")).unwrap_or_default();
        let words: Vec<&str> = told.split_whitespace().collect();
        let address = |at: usize| {
            // A link-local address is followed by the name of its link.
            let (ip, _) = words.get(at)?.split_once('%').unwrap_or((words.get(at)?, ""));
            let port = words.get(at + 1)?.parse().ok()?;
            Some(SocketAddr::new(canonical(ip.parse::<IpAddr>().ok()?), port))
        };
        let peer = address(0).unwrap_or(loopback);
        // SSH_CLIENT only has the server's port.
        let here =
            || if peer.ip().is_loopback() { SocketAddr::new(peer.ip(), 0) } else { route(peer, loopback) };
        (peer, address(2).unwrap_or_else(here))
    }
}

/// The address of this host that routes to `peer`. Nothing is sent.
fn route(peer: SocketAddr, otherwise: SocketAddr) -> SocketAddr {
    ropewalk_transport::local_address(peer).map_or(otherwise, |local| SocketAddr::new(canonical(local), 0))
}

/// Removes the settings for log-ins and listening, which are for other servers. The process has no
/// identity but its own.
pub(crate) fn prepare(config: Config, client: &SshClient) -> Config {
    let mut config = Config {
        listen: Vec::new(),
        password_file: None,
        anonymous: None,
        gsi: None,
        kerberos: None,
        tls: None,
        tokens: None,
        nodes: None,
        admin: Admin::default(),
        ..config
    };
    config.identity.mapped = false;
    config.identity.own_home = Some(client.home.clone());
    let own_root = config.users.get(&client.user).is_some_and(|user| user.root.is_some());
    let user = &mut config.defaults;
    if config.root.is_none() && user.root.is_none() && !own_root {
        config.root = Some("/".into());
        if user.home.is_none() {
            user.home = client.home.to_str().map(str::to_owned);
        }
    }
    config
}

/// A user in the settings who may be the one that was authenticated, and whose settings would not
/// apply.
fn doubtful<'a>(config: &'a Config, client: &SshClient, is_ours: impl Fn(&str) -> bool) -> Option<&'a str> {
    let mut names = config.users.keys().map(String::as_str);
    names.find(|name| !client.told && *name != client.user && is_ours(name))
}

/// Problems of `config` that matter to a session over ssh.
///
/// Problems of log-ins and listening do not.
pub fn check_ssh(config: &Config) -> Vec<Problem> {
    let elsewhere = [
        "listen",
        "password_file",
        "anonymous",
        "gsi",
        "kerberos",
        "process",
        "identity",
        "users",
        "tls",
        "tokens",
        "nodes",
    ];
    let mut problems = config.check();
    problems.retain(|problem| {
        let group = problem.setting.split('.').next().unwrap_or_default();
        !elsewhere.contains(&group) && !problem.setting.ends_with("root")
    });
    problems
}

impl Server {
    /// Makes a server for this one session. Settings for log-ins are ignored. Without a `root` the
    /// session sees all directories of the host, and begins in the user's home.
    ///
    /// # Errors
    /// The settings have errors, or the system denies something that it always grants.
    pub fn for_ssh(config: Config, client: SshClient, backends: Backends) -> Result<Self> {
        Error::refuse(check_ssh(&config))?;
        let uid = rustix::process::geteuid().as_raw();
        let ours = |name: &str| uzers::get_user_by_name(name).is_some_and(|account| account.uid() == uid);
        if let Some(name) = doubtful(&config, &client, ours) {
            let text = format!(
                "has the number of {}, and which of them was let in is not told: LOGNAME or USER has to name the account",
                client.user
            );
            let setting = format!("users.{name}");
            Error::refuse(vec![Problem { severity: Severity::Error, setting, text }])?;
        }
        let server = Self::bind_prepared(prepare(config, &client), backends)?;
        let SshClient { control, peer, local, user, .. } = client;
        control.set_nonblocking(true).map_err(Error::system("cannot set up the control connection"))?;
        // This is the first call, since there is no other session.
        let _ = server.host().ssh_user.set(user);
        let addresses = (peer, local);
        match admission::admit_ssh(server.host(), Stream::from_std(control), addresses) {
            Some(connection) => runner::greet(server.scheduler(), connection),
            None => server.handle().stop(),
        }
        Ok(server)
    }

    /// Serves the session of [`Server::for_ssh`] until it ends. SIGTERM lets its transfer finish
    /// first; SIGHUP, SIGINT and a second SIGTERM break it off.
    ///
    /// # Errors
    /// As [`Server::run`]; or signals cannot be handled.
    pub fn run_ssh(self) -> Result<()> {
        let watcher = Watcher::start(self.handle(), |_, _| true)?;
        let result = self.run();
        watcher.end();
        result
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn told(connection: Option<&str>, client: Option<&str>) -> (String, String) {
        let (peer, local) = SshClient::addresses(|name| {
            match name {
                "SSH_CONNECTION" => connection,
                "SSH_CLIENT" => client,
                _ => None,
            }
            .map(str::to_owned)
        });
        (peer.to_string(), local.to_string())
    }

    #[test]
    fn addresses_of_sshd_are_parsed() {
        let expect = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        assert_eq!(
            told(Some("192.0.2.7 50123 198.51.100.1 22"), Some("203.0.113.1 1 22")),
            expect("192.0.2.7:50123", "198.51.100.1:22")
        );
        assert_eq!(
            told(Some("::ffff:192.0.2.7 5 ::ffff:192.0.2.1 22"), None),
            expect("192.0.2.7:5", "192.0.2.1:22")
        );
        assert_eq!(told(Some("fe80::1%eth0 5 fe80::2%eth0 22"), None), expect("[fe80::1]:5", "[fe80::2]:22"));
        assert_eq!(told(None, Some("127.0.0.1 5 22")), expect("127.0.0.1:5", "127.0.0.1:0"));
        for nonsense in [None, Some(""), Some("UNKNOWN 65535 UNKNOWN 65535"), Some("1.2.3.4")] {
            assert_eq!(told(nonsense, None), expect("127.0.0.1:0", "127.0.0.1:0"), "{nonsense:?}");
        }
    }

    #[test]
    fn ssh_user_with_ambiguous_number_is_not_guessed() {
        let config = Config::parse("[users.ada]\n[users.bob]\nread_only = true\n").unwrap();
        let client = |user: &str, told| {
            let (control, _) = UnixStream::pair().unwrap();
            let (peer, local) = SshClient::addresses(|_| None);
            SshClient { control, peer, local, user: user.into(), told, home: "/".into() }
        };
        let twins = |name: &str| name == "ada" || name == "bob";
        assert_eq!(doubtful(&config, &client("ada", false), twins), Some("bob"));
        assert_eq!(doubtful(&config, &client("ada", true), twins), None);
        assert_eq!(doubtful(&config, &client("ada", false), |name| name == "ada"), None);
        assert_eq!(doubtful(&Config::default(), &client("ada", false), twins), None);
    }

    #[test]
    fn ssh_session_ignores_settings_of_log_ins() {
        let config = Config::parse("password_file = '/nonexistent'\nrules = 'R/'\n[anonymous]\n").unwrap();
        assert_eq!(check_ssh(&config), []);
        let wrong = Config::parse("rules = 'nonsense'").unwrap();
        assert_eq!(check_ssh(&wrong)[0].setting, "rules");
        let (control, _) = UnixStream::pair().unwrap();
        let (peer, local) = SshClient::addresses(|_| None);
        let client =
            SshClient { control, peer, local, user: "ada".into(), told: true, home: "/home/ada".into() };
        let prepared = prepare(config.clone(), &client);
        assert_eq!((prepared.root, prepared.defaults.home), (Some("/".into()), Some("/home/ada".into())));
        let prepared = prepare(Config { root: Some("/srv".into()), ..config }, &client);
        assert_eq!((prepared.root, prepared.defaults.home), (Some("/srv".into()), None));
    }
}
