//! TCP congestion controls: which ones this host has, and which ones a program without privileges may choose
//! (tcp(7), TCP_CONGESTION).

use std::collections::BTreeSet;
use std::fs;
use std::os::fd::BorrowedFd;

use parking_lot::Mutex;
use rustix::net::sockopt;

/// Names that are kept so that a warning comes once; peers may ask for any.
const REMEMBERED: usize = 64;

/// Congestion controls that the kernel has loaded, the default one included. More may be there as modules. Empty where
/// the kernel does not tell.
pub fn available() -> Vec<String> {
    names("available")
}

/// Congestion controls that everybody may choose; who has CAP_NET_ADMIN may choose every available one. Empty where the
/// kernel does not tell.
pub fn allowed() -> Vec<String> {
    names("allowed")
}

/// The host's settings are those of the network namespace of whoever asks.
fn names(which: &str) -> Vec<String> {
    let path = format!("/proc/sys/net/ipv4/tcp_{which}_congestion_control");
    let text = fs::read_to_string(path).unwrap_or_default();
    text.split_ascii_whitespace().map(str::to_owned).collect()
}

/// Has a socket use it from now on where that is possible, also in the middle of a connection; otherwise the socket keeps
/// the one that it has, and the first time a warning says why.
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
    fn the_kernel_tells_what_there_is() {
        // tcp(7): reno is always there, and always allowed.
        assert!(available().iter().any(|name| name == "reno"));
        assert!(allowed().iter().all(|name| available().contains(name)));
    }
}
