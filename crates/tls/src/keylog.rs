//! The traffic secrets of a handshake, for Ropewalk's own record layer on data connections.
//!
//! OpenSSL exports secrets through its callback for key logs. The secrets are kept only for
//! handshakes that requested it ([`for_data`]). They go to [`crate::DataRecords`] and nowhere else,
//! and are cleared with it.

use std::sync::OnceLock;

use openssl::error::ErrorStack;
use openssl::ex_data::Index;
use openssl::ssl::{Ssl, SslContextBuilder, SslRef};
use parking_lot::Mutex;
use zeroize::Zeroizing;

/// Length of the longest digest of the TLS 1.3 cipher suites, in bytes.
pub(crate) const MAX_SECRET: usize = 48;

pub(crate) type Secret = Zeroizing<Vec<u8>>;

/// The first application traffic secrets (RFC 8446 section 7.1).
#[derive(Default)]
pub(crate) struct Secrets {
    pub(crate) client: Option<Secret>,
    pub(crate) server: Option<Secret>,
}

type Place = Mutex<Secrets>;

fn index() -> Result<Index<Ssl, Place>, ErrorStack> {
    static INDEX: OnceLock<Result<Index<Ssl, Place>, ErrorStack>> = OnceLock::new();
    INDEX.get_or_init(Ssl::new_ex_index).clone()
}

/// Allows handshakes of data connections with this context; see [`for_data`].
pub fn allow_data(builder: &mut SslContextBuilder) {
    builder.set_keylog_callback(keep);
}

/// Declares that this handshake belongs to a data connection, so that only [`crate::DataRecords`]
/// follows it. The context must allow it ([`allow_data`]); otherwise OpenSSL keeps handling the
/// records.
///
/// # Errors
/// OpenSSL has no memory.
pub fn for_data(ssl: &mut SslRef) -> Result<(), ErrorStack> {
    ssl.set_ex_data(index()?, Place::default());
    Ok(())
}

/// Takes the secrets. The connection does not keep them afterwards.
pub(crate) fn take(ssl: &SslRef) -> Secrets {
    let place = index().ok().and_then(|index| ssl.ex_data(index));
    place.map(|place| std::mem::take(&mut *place.lock())).unwrap_or_default()
}

/// Parses a line of a key log: a label, the client's random bytes, a secret.
fn keep(ssl: &SslRef, line: &str) {
    let Some(place) = index().ok().and_then(|index| ssl.ex_data(index)) else { return };
    let mut words = line.split(' ');
    let (Some(label), Some(_), Some(digits), None) = (words.next(), words.next(), words.next(), words.next())
    else {
        return;
    };
    let mut secrets = place.lock();
    match label {
        "CLIENT_TRAFFIC_SECRET_0" => secrets.client = secret(digits),
        "SERVER_TRAFFIC_SECRET_0" => secrets.server = secret(digits),
        _ => {}
    }
}

fn secret(digits: &str) -> Option<Secret> {
    if digits.len() > 2 * MAX_SECRET || !digits.len().is_multiple_of(2) {
        return None;
    }
    // The vector has its final capacity from the start. If it grew, its old memory would not be
    // cleared.
    let mut secret = Zeroizing::new(Vec::with_capacity(MAX_SECRET));
    for pair in digits.as_bytes().chunks_exact(2) {
        let high = char::from(pair[0]).to_digit(16)?;
        let low = char::from(pair[1]).to_digit(16)?;
        secret.push((high << 4 | low) as u8);
    }
    Some(secret)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secret_parses_hexadecimal_digits() {
        assert_eq!(secret("00ff1A").as_deref(), Some(&vec![0, 0xff, 0x1a]));
        for bad in ["0", "0g", "+1", "é"] {
            assert!(secret(bad).is_none(), "{bad}");
        }
        assert!(secret(&"00".repeat(MAX_SECRET)).is_some());
        assert!(secret(&"00".repeat(MAX_SECRET + 1)).is_none());
    }
}
