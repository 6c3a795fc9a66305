//! Passwords that can be read on the way.

use std::net::IpAddr;

use super::Session;
use crate::Event;

impl Session {
    /// Whether the control connection is encrypted.
    pub(crate) fn is_protected(&self) -> bool {
        self.tls.is_some() || self.security.is_some() || self.kerberos.is_some() || self.control.is_ssh()
    }

    /// Must be called before a password is sent. `anonymous`: it is not secret.
    pub(crate) fn warn_of_clear_password(&self, anonymous: bool) {
        let address = self.control.remote_addr().ip();
        if anonymous || self.is_protected() || !is_network(address) {
            return;
        }
        let peer = self.control.peer();
        if !self.setup.warned_of_clear.add(peer) {
            return;
        }
        self.setup.events.event(Event::Warning {
            message: format!(
                "the password for {peer} goes over the network in clear, where others can read it; \
                 --tls (or ftpes://) encrypts it if the server supports TLS"
            ),
        });
    }
}

/// Whether traffic to the address leaves this host.
fn is_network(address: IpAddr) -> bool {
    !address.to_canonical().is_loopback()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn loopback_is_no_network() {
        for (address, network) in [
            ("127.0.0.1", false),
            ("127.8.9.10", false),
            ("::1", false),
            ("::ffff:127.0.0.1", false),
            ("192.0.2.1", true),
            ("10.0.0.1", true),
            ("::ffff:192.0.2.1", true),
            ("fe80::1", true),
        ] {
            assert_eq!(is_network(address.parse().unwrap()), network, "{address}");
        }
    }
}
