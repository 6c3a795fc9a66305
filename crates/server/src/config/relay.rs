use std::path::PathBuf;
use std::sync::Arc;

use ropewalk_protocol::hop_login::ServerAddress;
use ropewalk_protocol::stack::StackSpec;
use ropewalk_remote_store::{Spool, Targets};
use serde::{Deserialize, Serialize};

use super::units;

/// Relays: paths such as `/ftp://HOST:PORT/data/f` name files at other servers, to which this
/// server connects on behalf of its sessions (docs/relays.md). The rules of accounts hold for these
/// paths as for all others. At a gsiftp server the session has the credential that the client
/// delegated; at others it is anonymous, unless the client gave a log-in (SITE HOPLOGIN).
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Relay {
    /// The servers that may be connected to: names of hosts, addresses, networks
    /// (`["data.example.org", "192.0.2.0/24"]`). Addresses are checked after names were resolved.
    /// Default: none, the server is no relay.
    pub to: Vec<String>,
    /// The names of the accounts that may use it; `anonymous` stands for those without a password.
    /// Default: all accounts.
    pub users: Vec<String>,
    /// The most relays, this one included, in one path. Default 8.
    pub hops: u32,
    /// Memory for the data that has come from one side and has not left on the other, of all files
    /// together. Each file may use 1 MiB even if that is more. Default 64 MiB.
    #[serde(with = "units::bytes")]
    pub memory: u64,
    /// A directory for data for which there is no room in `memory`, so that a fast hop need not
    /// wait for a slow one. It is in a file without a name, which ends with the server. Default:
    /// none, the fast hop waits.
    pub spool: Option<PathBuf>,
    /// The most data in `spool`, of all files together. Default 10 GiB.
    #[serde(with = "units::bytes")]
    pub spool_size: u64,
    /// Whether data between this relay and gsiftp servers is encrypted. Default `false`: the data
    /// connections are authenticated only.
    pub private: bool,
    /// The drivers of data connections to far servers, which they have to know: `tcp`, `udt`. The
    /// clients' own data connections have the stack that they choose. Default: TCP.
    pub stack: Option<String>,
    /// Data connections for one file between this relay and a far server. Default: found by the
    /// tuner while data moves, beginning with the number that the round-trip time suggests; 1 over
    /// UDT.
    pub streams: Option<u32>,
    /// Other drivers and numbers of data connections for single far servers; the first entry that
    /// names the server counts.
    pub hop: Vec<RelayHop>,
    /// The certificates of authorities that vouch for ftpes and ftps servers: a file (PEM), or a
    /// directory of hashed names. Default: those that the system trusts.
    pub authorities: Option<PathBuf>,
}

/// The data connections between a relay and a far server. A value that is left out is that of all
/// servers.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct RelayHop {
    /// The far server as paths name it: `data.example.org`, or `data.example.org:2811` for this
    /// port alone. Addresses are not resolved: a path with a name has no entry with an address.
    pub to: String,
    /// The drivers of data connections.
    #[serde(default)]
    pub stack: Option<String>,
    /// Data connections for one file.
    #[serde(default)]
    pub streams: Option<u32>,
}

/// The most data connections for one file.
const MOST_STREAMS: u32 = 256;

/// The data connections of a relay to a far server.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct HopSettings {
    pub(crate) stack: Option<StackSpec>,
    pub(crate) streams: Option<u32>,
}

impl RelayHop {
    fn is_for(&self, server: &ServerAddress) -> bool {
        match self.to.parse::<ServerAddress>() {
            Ok(address) => address == *server,
            Err(_) => {
                let plain = |host: &str| host.trim_matches(['[', ']']).to_ascii_lowercase();
                let server = server.to_string();
                server.rsplit_once(':').is_some_and(|(host, _)| plain(host) == plain(&self.to))
            }
        }
    }
}

impl Relay {
    /// The settings of data connections to a far server. A stack that cannot be parsed is none:
    /// [`Relay::check_hops`] finds it.
    pub(crate) fn hop_to(&self, server: &ServerAddress) -> HopSettings {
        let hop = self.hop.iter().find(|hop| hop.is_for(server));
        let stack = hop.and_then(|hop| hop.stack.as_ref()).or(self.stack.as_ref());
        let streams = hop.and_then(|hop| hop.streams).or(self.streams);
        HopSettings { stack: stack.and_then(|stack| stack.parse().ok()), streams }
    }

    /// Checks the stacks and numbers of data connections. `knows` returns whether the program has a
    /// driver.
    ///
    /// # Errors
    /// The setting, and what is wrong with it.
    pub(crate) fn check_hops(&self, knows: impl Fn(&str) -> bool) -> Result<(), (&'static str, String)> {
        let all = [("relay.stack", "relay.streams", &self.stack, self.streams)].into_iter();
        let each = self.hop.iter().map(|hop| ("relay.hop", "relay.hop", &hop.stack, hop.streams));
        for (of_stack, of_streams, stack, streams) in all.chain(each) {
            if let Some(text) = stack {
                let stack: StackSpec =
                    text.parse().map_err(|error| (of_stack, format!("{text}: {error}")))?;
                if let Some(driver) = stack.drivers().iter().find(|driver| !knows(driver.name())) {
                    return Err((of_stack, format!("this program has no driver {}", driver.name())));
                }
            }
            if streams.is_some_and(|streams| !(1..=MOST_STREAMS).contains(&streams)) {
                return Err((of_streams, format!("expected 1 to {MOST_STREAMS} streams")));
            }
        }
        let unnamed = self.hop.iter().any(|hop| hop.to.is_empty());
        if unnamed { Err(("relay.hop", "an entry names no server".to_owned())) } else { Ok(()) }
    }

    /// The rules of `to`.
    ///
    /// # Errors
    /// The text about a rule that cannot be parsed.
    pub(crate) fn targets(&self) -> Result<Targets, String> {
        let mut targets = Targets::default();
        for rule in &self.to {
            targets.extend(rule.parse().map_err(|error| format!("{error}"))?);
        }
        Ok(targets)
    }

    /// Makes the file of the spool.
    ///
    /// # Errors
    /// The setting, and why the directory cannot be used.
    pub(crate) fn make_spool(&self) -> Result<Option<Arc<Spool>>, (&'static str, String)> {
        let Some(directory) = &self.spool else { return Ok(None) };
        let spool = Spool::new(directory, self.spool_size);
        spool.map(Some).map_err(|error| ("relay.spool", format!("{}: {error}", directory.display())))
    }

    /// `user` is the name that is used in limits.
    pub(crate) fn permits(&self, user: &str) -> bool {
        self.users.is_empty() || self.users.iter().any(|name| name == user)
    }
}

impl Default for Relay {
    fn default() -> Self {
        Self {
            to: Vec::new(),
            users: Vec::new(),
            hops: 8,
            memory: 64 << 20,
            spool: None,
            spool_size: 10 << 30,
            private: false,
            stack: None,
            streams: None,
            hop: Vec::new(),
            authorities: None,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const HOPS: &str = "stack = 'udt'\nstreams = 4\n
        hop = [{ to = 'near:2811', stack = 'tcp' }, { to = 'Near', streams = 9 }, { to = '[::1]:7', streams = 1 }]";

    #[test]
    fn hop_has_the_settings_of_the_first_entry_for_its_server() {
        let relay: Relay = toml::from_str(HOPS).unwrap();
        let of = |server: &str| {
            let HopSettings { stack, streams } = relay.hop_to(&server.parse().unwrap());
            (stack.map(|stack| stack.to_string()).unwrap(), streams.unwrap())
        };
        assert_eq!(of("near:2811"), ("tcp".to_owned(), 4));
        assert_eq!(of("near:21"), ("udt".to_owned(), 9));
        assert_eq!(of("far:2811"), ("udt".to_owned(), 4));
        assert_eq!(of("[::1]:7"), ("udt".to_owned(), 1));
        assert_eq!(relay.check_hops(|name| ["tcp", "udt"].contains(&name)), Ok(()));
        assert_eq!(Relay::default().hop_to(&"a:1".parse().unwrap()), HopSettings::default());
    }

    #[test]
    fn hops_that_cannot_work_are_errors() {
        for (text, setting) in [
            ("stack = 'udt'", "relay.stack"),
            ("stack = ','", "relay.stack"),
            ("streams = 0", "relay.streams"),
            ("hop = [{ to = 'a', streams = 1000 }]", "relay.hop"),
            ("hop = [{ to = 'a', stack = 'udt' }]", "relay.hop"),
            ("hop = [{ to = '' }]", "relay.hop"),
        ] {
            let relay: Relay = toml::from_str(text).unwrap();
            assert_eq!(relay.check_hops(|name| name == "tcp").unwrap_err().0, setting, "{text}");
        }
    }
}
