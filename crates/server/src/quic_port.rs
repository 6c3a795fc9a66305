//! The UDP port that all data channels over QUIC share.

use std::io;
use std::net::SocketAddr;

use ropewalk_layers::QuicPort;

use crate::config::Data;
use crate::error::{Error, Result};

/// The name of the driver.
pub(crate) const QUIC: &str = "quic";

/// Opens the port at the addresses of the control port, if the settings allow QUIC. Without
/// `data.quic_port` it is the number of the control port, and a port that is taken is no error:
/// each channel then has a port of its own.
///
/// # Errors
/// The port that `data.quic_port` names cannot be opened.
pub(crate) fn bind(data: &Data, listening: &[SocketAddr]) -> Result<Option<QuicPort>> {
    let has_quic = data.drivers.iter().any(|name| name == QUIC);
    if !has_quic || !QuicPort::EXISTS || data.quic_port == Some(0) || data.interface.is_some() {
        return Ok(None);
    }
    let addresses = addresses(listening, data.quic_port);
    let Some(first) = addresses.first() else { return Ok(None) };
    match QuicPort::bind(&addresses) {
        Ok(port) => {
            tracing::info!(addresses = ?port.addresses(), "data channels over QUIC share a UDP port");
            Ok(Some(port))
        }
        Err(source) if data.quic_port.is_some() => {
            let source = io::Error::new(source.kind(), format!("data.quic_port: {source}"));
            Err(Error::Listen { address: *first, source })
        }
        Err(error) => {
            tracing::warn!(
                %error,
                ?addresses,
                "data channels over QUIC have ports of their own: this UDP port cannot be used; \
                 name another one as data.quic_port"
            );
            Ok(None)
        }
    }
}

/// The addresses of the port: those of the control port, each IP address once. An address that
/// another one of them includes (`0.0.0.0`, `[::]`) is left out.
fn addresses(listening: &[SocketAddr], port: Option<u16>) -> Vec<SocketAddr> {
    let mut addresses: Vec<SocketAddr> = Vec::new();
    for address in listening {
        let ip = address.ip();
        let includes = |other: &SocketAddr| {
            other.ip().is_unspecified() && (other.is_ipv6() || ip.is_ipv4()) && !ip.is_unspecified()
        };
        if !addresses.iter().any(|other| other.ip() == ip) && !listening.iter().any(includes) {
            addresses.push(SocketAddr::new(ip, port.unwrap_or(address.port())));
        }
    }
    addresses
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn port_has_each_address_of_the_control_port_once() {
        for (listening, port, expected) in [
            (&["0.0.0.0:2811"][..], None, &["0.0.0.0:2811"][..]),
            (
                &["192.0.2.1:2811", "192.0.2.1:990", "[2001:db8::1]:2811"],
                None,
                &["192.0.2.1:2811", "[2001:db8::1]:2811"],
            ),
            (&["127.0.0.1:2812", "[::]:2811"], Some(443), &["[::]:443"]),
            (&["0.0.0.0:21", "[::1]:21"], None, &["0.0.0.0:21", "[::1]:21"]),
            (&[], None, &[]),
        ] {
            let parse =
                |all: &[&str]| -> Vec<SocketAddr> { all.iter().map(|a| a.parse().unwrap()).collect() };
            assert_eq!(addresses(&parse(listening), port), parse(expected), "{listening:?}");
        }
    }

    #[test]
    fn port_is_opened_only_if_the_settings_allow_it() {
        let data = |text: &str| crate::config::Config::parse(&format!("[data]\n{text}")).unwrap().data;
        let at = ["127.0.0.1:0".parse().unwrap()];
        let opened = |text| bind(&data(text), &at).unwrap().is_some();
        // A crate that is tested alone may be without QUIC.
        assert_eq!(opened("drivers = ['tcp', 'quic']"), QuicPort::EXISTS);
        assert!(!opened("drivers = ['tcp', 'udt']"));
        assert!(!opened("drivers = ['quic']\nquic_port = 0"));
        assert!(!opened("drivers = ['quic']\ninterface = '127.0.0.1'"));
        let taken = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let socket = std::net::UdpSocket::bind(taken).unwrap();
        let named = data(&format!("drivers = ['quic']\nquic_port = {}", taken.port()));
        if QuicPort::EXISTS {
            assert!(bind(&named, &at).err().unwrap().to_string().contains("data.quic_port"));
        }
        // The control port's number is only a wish.
        assert!(bind(&data("drivers = ['quic']"), &[taken]).unwrap().is_none());
        drop(socket);
    }
}
