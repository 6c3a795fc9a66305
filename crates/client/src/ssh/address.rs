//! Finds the server's address: data connections need it, and ssh hides that of the control
//! connection.

use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::process::{Command, Stdio};
use std::time::Duration;

use ropewalk_transport::local_address;

use crate::ssh::process::wait;

/// ssh may run programs of its configuration (Match exec) before it answers.
const PATIENCE: Duration = Duration::from_secs(5);
/// Its answer has a few KiB.
const LONGEST: u64 = 64 << 10;
/// For finding addresses; data connections use other ports.
const ANY_PORT: u16 = 22;

/// ssh's configuration for a server.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Configured {
    /// The host that the name in the URL stands for.
    pub(super) host: Option<String>,
    /// The user's own configuration shares log-ins.
    pub(super) shares: bool,
    /// The server is reached through another host or program, which may resolve the name
    /// differently.
    pub(super) detour: bool,
}

impl Configured {
    /// Returns the defaults if ssh does not answer.
    pub(super) fn ask(command: &mut Command) -> Self {
        let started = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
        let Ok(mut ssh) = started else { return Self::default() };
        // The output fits into the pipe.
        let in_time = wait(&mut ssh, PATIENCE).is_some();
        if !in_time {
            let _ = ssh.kill();
            let _ = ssh.wait();
            return Self::default();
        }
        let mut text = String::new();
        let read = ssh.stdout.take().map(|stdout| stdout.take(LONGEST).read_to_string(&mut text));
        if matches!(read, Some(Ok(_))) { Self::parse(&text) } else { Self::default() }
    }

    fn parse(text: &str) -> Self {
        let value = |key: &str| {
            let mut lines = text.lines().filter_map(|line| line.split_once(' '));
            lines
                .find(|(name, _)| *name == key)
                .map(|(_, value)| value.trim())
                .filter(|value| *value != "none")
        };
        Self {
            host: value("hostname").map(str::to_owned),
            shares: value("controlpath").is_some(),
            detour: value("proxyjump").is_some() || value("proxycommand").is_some(),
        }
    }
}

/// The server's address and ours on the way to it. Unspecified if unknown: the server may be behind
/// another host that ssh goes through (`detour`).
pub(super) fn addresses(host: &str, detour: bool) -> (SocketAddr, SocketAddr) {
    let unknown = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
    if detour {
        return (unknown, unknown);
    }
    let found = (host, ANY_PORT).to_socket_addrs().ok().and_then(|mut all| all.next());
    let Some(remote) = found else { return (unknown, unknown) };
    (remote, local_address(remote).map_or(unknown, |ip| SocketAddr::new(ip, 0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_reached_from_loopback() {
        for host in ["127.0.0.1", "::1"] {
            let (remote, local) = addresses(host, false);
            assert_eq!((remote.ip().to_string(), local.ip()), (host.to_owned(), remote.ip()));
        }
        let (remote, local) = addresses("name.invalid", false);
        assert!(remote.ip().is_unspecified() && local.ip().is_unspecified());
    }

    #[test]
    fn what_ssh_tells() {
        let text = "host x\nuser root\nhostname x.example\ncontrolmaster false\ncontrolpath none\n";
        assert_eq!(
            Configured::parse(text),
            Configured { host: Some("x.example".to_owned()), ..Configured::default() }
        );
        assert!(Configured::parse("hostname x\nproxyjump a.example\n").detour);
        assert!(!Configured::parse("hostname x\nproxycommand none\n").detour);
        assert!(addresses("127.0.0.1", true).0.ip().is_unspecified());
        assert!(Configured::parse("controlpath /home/ada/%C\n").shares);
        let mut silent = Command::new("false");
        assert_eq!(Configured::ask(&mut silent), Configured::default());
        assert_eq!(Configured::ask(&mut Command::new("/nonexistent")), Configured::default());
    }
}
