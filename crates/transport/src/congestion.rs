//! TCP congestion controls: which ones this host has, and which ones a program without privileges
//! may choose (tcp(7), TCP_CONGESTION).

use std::collections::BTreeSet;
use std::fs;
use std::os::fd::BorrowedFd;

use parking_lot::Mutex;
use rustix::net::sockopt;

/// How many names are remembered so that each warning is logged once; peers may request any name.
const REMEMBERED: usize = 64;

/// The congestion controls that the kernel has loaded, including the default one. Others may be
/// available as modules. Empty if the kernel does not list them.
pub fn available() -> Vec<String> {
    names("available")
}

/// The congestion controls that every process may choose. With CAP_NET_ADMIN, a process may choose
/// every available one. Empty if the kernel does not list them.
pub fn allowed() -> Vec<String> {
    names("allowed")
}

/// Reads the list of the network namespace of this process.
fn names(which: &str) -> Vec<String> {
    let path = format!("/proc/sys/net/ipv4/tcp_{which}_congestion_control");
    let text = fs::read_to_string(path).unwrap_or_default();
    text.split_ascii_whitespace().map(str::to_owned).collect()
}

/// Makes a socket use a congestion control from now on, also in the middle of a connection. If that
/// is not possible, the socket keeps the current one, and the first failure for each name is logged
/// as a warning.
pub fn apply(socket: BorrowedFd<'_>, name: &str) {
    static TOLD: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    if let Err(error) = sockopt::set_tcp_congestion(socket, name) {
        let mut told = TOLD.lock();
        if told.len() < REMEMBERED && told.insert(name.to_owned()) {
            let allowed = allowed().join(" ");
            tracing::warn!(%name, %error, %allowed, "cannot use this TCP congestion control");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn available_and_allowed_list_the_controls_of_the_kernel() {
        // tcp(7): reno is always available and allowed.
        assert!(available().iter().any(|name| name == "reno"));
        assert!(allowed().iter().all(|name| available().contains(name)));
    }
}
