//! The congestion control of data connections.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::Flows;

/// The congestion control of a data channel's connections, open ones and later ones: a handle for
/// any thread. `None` leaves it to the driver, or to the listener if peers connect, and open
/// connections keep theirs. A name that the host does not have or does not allow changes nothing,
/// and is logged as a warning.
#[derive(Clone, Debug, Default)]
pub struct Congestion {
    name: Arc<Mutex<Option<String>>>,
    flows: Flows,
}

impl Congestion {
    pub(crate) fn new(name: Option<String>, flows: Flows) -> Self {
        Self { name: Arc::new(Mutex::new(name)), flows }
    }

    pub fn set(&self, name: Option<String>) {
        let mut now = self.name.lock();
        if *now == name {
            return;
        }
        if let Some(name) = &name {
            self.flows.set_congestion(name);
        }
        *now = name;
    }

    pub fn get(&self) -> Option<String> {
        self.name.lock().clone()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::net::Ipv4Addr;

    use ropewalk_transport::{Tcp, testing};
    use rustix::net::sockopt::tcp_congestion;

    use super::*;

    #[test]
    fn set_changes_connections_that_are_there() {
        let (near, _far) = testing::pair(&Tcp, (Ipv4Addr::LOCALHOST, 0));
        let used = || tcp_congestion(near.fast_path().socket().unwrap()).unwrap();
        let flows = Flows::default();
        let listed = flows.register(near.handle(), near.peer_addr().unwrap());
        let congestion = Congestion::new(None, flows);
        let had = used();
        congestion.set(Some("no such thing".into()));
        assert_eq!(used(), had);
        // tcp(7): reno is always available and allowed.
        congestion.set(Some("reno".into()));
        assert_eq!(used(), "reno");
        congestion.set(None);
        assert_eq!((used().as_str(), congestion.get()), ("reno", None));
        drop(listed);
    }
}
