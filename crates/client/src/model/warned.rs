//! Servers about which the user has been warned.

use std::collections::HashSet;

use parking_lot::Mutex;

/// The servers that one warning of a run has named.
#[derive(Default)]
pub(crate) struct WarnedServers(Mutex<HashSet<String>>);

impl WarnedServers {
    /// Notes a warning about a server; `true` for the first one.
    pub(crate) fn add(&self, peer: &str) -> bool {
        self.0.lock().insert(peer.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warned_servers_when_one_comes_again_do_not_count_it() {
        let warned = WarnedServers::default();
        let first = ["a:21", "b:21", "a:21", "b:21", "b:2811"].map(|peer| warned.add(peer));
        assert_eq!(first, [true, true, false, false, true]);
    }
}
