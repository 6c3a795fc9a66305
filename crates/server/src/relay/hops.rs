//! Stores and log-ins of one session at other servers (SITE HOPLOGIN).
//!
//! They belong to one log-in at this server and end with it. Secrets are in memory alone. The
//! log-in of the next server is used here; those of servers behind it go to the next server if the
//! path leads to them, and to no other.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use ropewalk_client::RelayedLogin;
use ropewalk_protocol::hop_login::{HopLogin, ServerAddress};
use ropewalk_protocol::url::{Scheme, Url};
use ropewalk_remote_store::{Delegated, RemoteStore};

use super::Relay;
use super::name::Name;

/// The most servers that one session uses at a time.
const MOST_SERVERS: usize = 16;
/// The most log-ins that one session gives.
const MOST_LOGINS: usize = 64;
/// The longest name of a task.
const LONGEST_TASK: usize = 128;

/// See the description of the module.
pub(crate) struct Hops {
    relay: Arc<Relay>,
    delegated: Delegated,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    stores: HashMap<String, Arc<RemoteStore>>,
    logins: Vec<HopLogin>,
    /// The name of the client's task, for the servers.
    task: Option<String>,
}

impl Hops {
    pub(super) fn new(relay: &Arc<Relay>, delegated: Delegated) -> Arc<Self> {
        Arc::new(Self { relay: relay.clone(), delegated, state: Mutex::default() })
    }

    pub(super) fn relay(&self) -> &Relay {
        &self.relay
    }

    /// Keeps a log-in; the last one for a server counts. Sessions that logged in otherwise end.
    ///
    /// # Errors
    /// There are too many.
    pub(crate) fn add(&self, login: HopLogin) -> Result<(), String> {
        let mut state = self.state.lock();
        state.logins.retain(|known| known.server != login.server);
        if state.logins.len() >= MOST_LOGINS {
            return Err(format!("A session has at most {MOST_LOGINS} log-ins for other servers."));
        }
        state.logins.push(login);
        state.stores.clear();
        Ok(())
    }

    /// Names the task of the client. Servers get no name that is not a word of visible ASCII.
    /// Sessions that gave them another name end.
    pub(crate) fn name_task(&self, task: &[u8]) {
        let is_word = task.len() <= LONGEST_TASK && task.iter().all(u8::is_ascii_graphic);
        let task = std::str::from_utf8(task).ok().filter(|task| is_word && !task.is_empty());
        let mut state = self.state.lock();
        if state.task.as_deref() != task {
            state.task = task.map(str::to_owned);
            state.stores.clear();
        }
    }

    /// The store of the server that the path names.
    ///
    /// # Errors
    /// The log-in would be sent in clear.
    pub(super) fn store(&self, name: &Name) -> Result<Arc<RemoteStore>, String> {
        let mut state = self.state.lock();
        let (url, farther) = state.log_in(name)?;
        let key = key(&name.url, &farther);
        if let Some(store) = state.stores.get(&key) {
            return Ok(store.clone());
        }
        if state.stores.len() >= MOST_SERVERS {
            state.stores.clear();
        }
        let mut settings = self.relay.settings(&url, &self.delegated);
        settings.options.login.hops = farther;
        settings.options.data.task.clone_from(&state.task);
        let store = RemoteStore::new(&self.relay.client, &url, settings);
        state.stores.insert(key, store.clone());
        Ok(store)
    }
}

impl State {
    /// The URL with the log-in at the server, and the log-ins that the server needs farther on.
    fn log_in(&self, name: &Name) -> Result<(Url, Vec<RelayedLogin>), String> {
        let own = ServerAddress::of(&name.url);
        let mut url = name.url.clone();
        if let Some(login) = self.logins.iter().find(|login| login.server == own) {
            if url.scheme == Scheme::Ftp {
                return Err(format!(
                    "the log-in of {} at {own} is not sent in clear: name the server with ftpes://, ftps:// or gsiftp://",
                    login.user
                ));
            }
            url.user = Some(login.user.clone());
            url.password = Some(login.secret.clone());
        }
        let farther = name.beyond.iter().filter_map(|beyond| {
            let address = ServerAddress::of(beyond);
            let login = self.logins.iter().find(|login| login.server == address)?;
            let (user, password) = (Some(login.user.clone()), Some(login.secret.clone()));
            Some(RelayedLogin { relay: own.clone(), server: Url { user, password, ..beyond.clone() } })
        });
        Ok((url, farther.collect()))
    }
}

/// Sessions are for paths that lead to the same servers which need a log-in.
fn key(url: &Url, farther: &[RelayedLogin]) -> String {
    let farther: Vec<String> = farther.iter().map(|login| login.server.to_string()).collect();
    format!("{url} {}", farther.join(" "))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use ropewalk_protocol::command::Password;
    use ropewalk_protocol::path::VirtualPath;

    use super::*;

    fn state() -> State {
        let login = |server: &str, user: &str| HopLogin {
            server: server.parse().unwrap(),
            user: user.into(),
            secret: Password::new(format!("secret-{user}")),
        };
        let logins = vec![login("c:1", "cora"), login("d:2", "dora"), login("e:3", "emil")];
        State { logins, ..State::default() }
    }

    fn log_in(path: &str) -> Result<(Url, Vec<RelayedLogin>), String> {
        let name = Name::of(&VirtualPath::parse(path.as_bytes()).unwrap(), 8).unwrap().unwrap();
        state().log_in(&name)
    }

    #[test]
    fn log_in_of_the_next_server_is_used_and_those_behind_it_go_on() {
        let (url, farther) = log_in("/ftpes://C:1/gsiftp://x/ftps://d:2/f").unwrap();
        assert_eq!(url.to_string_with_password(), "ftpes://cora:secret-cora@c:1/");
        let [dora] = &*farther else { panic!("{farther:?}") };
        assert_eq!(dora.relay.to_string(), "c:1");
        assert_eq!(dora.server.to_string_with_password(), "ftps://dora:secret-dora@d:2/");
    }

    #[test]
    fn servers_without_a_log_in_get_none() {
        for path in ["/ftpes://c:2/f", "/gsiftp://x/f", "/ftpes://cc:1/ftpes://dd:2/f"] {
            let (url, farther) = log_in(path).unwrap();
            assert_eq!((url.user, url.password, farther), (None, None, vec![]), "{path}");
        }
    }

    #[test]
    fn log_in_is_not_sent_in_clear() {
        let error = log_in("/ftp://c:1/f").unwrap_err();
        assert!(error.contains("cora at c:1 is not sent in clear") && !error.contains("secret"), "{error}");
    }
}
