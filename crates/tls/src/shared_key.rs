//! TLS between two programs that have the same secret, without certificates (RFC 8446, external
//! pre-shared keys). Each side proves in the handshake that it has the secret, and the keys of the
//! connection come from a Diffie-Hellman exchange, so that a secret that leaks later opens no
//! recorded connection. The secret has to be hard to guess: a false peer can try guesses offline.

use openssl::error::ErrorStack;
use openssl::ssl::{
    Ssl, SslContext, SslContextBuilder, SslMethod, SslOptions, SslSessionCacheMode, SslVerifyMode, SslVersion,
};
use ring::hmac;

use crate::handshake::Handshake;

/// SSL_OP_CLEANSE_PLAINTEXT (ssl.h): OpenSSL clears its copy of received data when it has handed it
/// over.
const CLEANSE_PLAINTEXT: u64 = 1 << 1;

/// The name of the key in the handshake. It is public.
const IDENTITY: &[u8] = b"ropewalk";

/// A secret in a context for any number of handshakes of both sides. Cheap to clone.
///
/// The caller has to check [`Established::resumed`](crate::Established::resumed): it is true if the
/// handshake used the secret.
#[derive(Clone)]
pub struct SharedKey {
    connecting: SslContext,
    accepting: SslContext,
}

impl std::fmt::Debug for SharedKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SharedKey")
    }
}

impl SharedKey {
    /// `purpose` separates the keys of different uses of one secret.
    ///
    /// # Errors
    /// OpenSSL has no TLS 1.3.
    pub fn new(secret: &[u8], purpose: &[u8]) -> Result<Self, ErrorStack> {
        let key = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), purpose);
        let mut connecting = builder()?;
        connecting.set_psk_client_callback(move |_, _, identity, secret| {
            // The identity ends with a zero byte.
            identity[..IDENTITY.len()].copy_from_slice(IDENTITY);
            identity[IDENTITY.len()] = 0;
            Ok(put(key.as_ref(), secret))
        });
        let mut accepting = builder()?;
        // Without one, OpenSSL accepts no keys if it also checks certificates.
        accepting.set_session_id_context(b"ropewalk")?;
        accepting.set_psk_server_callback(move |_, identity, secret| {
            Ok(if identity == Some(IDENTITY) { put(key.as_ref(), secret) } else { 0 })
        });
        Ok(Self { connecting: connecting.build(), accepting: accepting.build() })
    }

    /// Starts the handshake of the side that connects.
    ///
    /// # Errors
    /// OpenSSL has no memory.
    pub fn connect(&self) -> Result<Handshake, ErrorStack> {
        let mut ssl = Ssl::new(&self.connecting)?;
        ssl.set_connect_state();
        Handshake::new(ssl, &self.connecting)
    }

    /// Starts the handshake of the side that accepts.
    ///
    /// # Errors
    /// OpenSSL has no memory.
    pub fn accept(&self) -> Result<Handshake, ErrorStack> {
        let mut ssl = Ssl::new(&self.accepting)?;
        ssl.set_accept_state();
        Handshake::new(ssl, &self.accepting)
    }
}

fn builder() -> Result<SslContextBuilder, ErrorStack> {
    let mut builder = SslContextBuilder::new(SslMethod::tls())?;
    builder.set_min_proto_version(Some(SslVersion::TLS1_3))?;
    builder.set_max_proto_version(Some(SslVersion::TLS1_3))?;
    // The callbacks stand for keys of cipher suites with SHA-256.
    builder.set_ciphersuites("TLS_AES_128_GCM_SHA256")?;
    builder.set_session_cache_mode(SslSessionCacheMode::OFF);
    builder.set_num_tickets(0)?;
    // The messages may have secrets of others.
    builder.set_options(SslOptions::from_bits_retain(CLEANSE_PLAINTEXT));
    // A peer that offers a certificate in place of the secret is refused: none is trusted.
    builder.set_verify(SslVerifyMode::PEER);
    Ok(builder)
}

/// Copies the key into OpenSSL's buffer, which is long enough for it, and returns its length.
fn put(key: &[u8], buffer: &mut [u8]) -> usize {
    buffer[..key.len()].copy_from_slice(key);
    key.len()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use openssl::ssl::SslVersion;

    use super::*;
    use crate::{Client, ClientSettings, Established, HandshakeError};

    type Ended = Result<Option<Box<Established>>, HandshakeError>;

    /// Exchanges messages until both sides have ended, or neither has anything to send.
    fn run(mut connects: Handshake, mut accepts: Handshake) -> (Ended, Ended) {
        let mut bytes = Vec::new();
        let mut here = connects.step(&[], &mut bytes);
        let mut there: Ended = Ok(None);
        for _ in 0..8 {
            let mut answer = Vec::new();
            if matches!(there, Ok(None)) {
                there = accepts.step(&bytes, &mut answer);
            }
            bytes.clear();
            if matches!(here, Ok(None)) {
                here = connects.step(&answer, &mut bytes);
            }
        }
        (here, there)
    }

    #[test]
    fn same_secret_secures_connection() {
        let key = SharedKey::new(b"a secret that is long enough", b"test").unwrap();
        let (here, there) = run(key.connect().unwrap(), key.accept().unwrap());
        let (mut here, mut there) = (here.unwrap().unwrap(), there.unwrap().unwrap());
        assert!(here.resumed && there.resumed);
        let (mut sealed, mut plain) = (Vec::new(), Vec::new());
        here.records.seal(b"renew", &mut sealed).unwrap();
        assert!(!sealed.windows(5).any(|window| window == b"renew"));
        assert!(there.records.open(&sealed, &mut plain).unwrap());
        assert_eq!(plain, b"renew");
    }

    #[test]
    fn other_secret_or_purpose_is_refused() {
        let key = SharedKey::new(b"a secret that is long enough", b"test").unwrap();
        for (secret, purpose) in
            [(&b"another secret that is as long"[..], &b"test"[..]), (b"a secret that is long enough", b"x")]
        {
            let other = SharedKey::new(secret, purpose).unwrap();
            let (here, there) = run(key.connect().unwrap(), other.accept().unwrap());
            assert!(!matches!(here, Ok(Some(_))), "{here:?}");
            assert!(!matches!(there, Ok(Some(_))), "{there:?}");
        }
    }

    #[test]
    fn server_with_certificate_but_without_secret_is_refused() {
        let key = SharedKey::new(b"a secret that is long enough", b"test").unwrap();
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("self.pem");
        crate::load_or_make(&file, &["localhost".to_owned()]).unwrap();
        let settings = crate::ServerSettings {
            certificate: file.clone(),
            key: file,
            client_authorities: None,
            client_revocations: None,
            min_version: SslVersion::TLS1_2,
        };
        let server = crate::Server::new(&settings).unwrap();
        let binding = crate::Binding::new().unwrap();
        let (here, _) = run(key.connect().unwrap(), server.accept(&binding).unwrap());
        assert!(!matches!(here, Ok(Some(_))), "{here:?}");
        // Nor is a client without the secret let in.
        let client = Client::new(&ClientSettings::default()).unwrap();
        let (_, there) = run(client.connect("localhost").unwrap(), key.accept().unwrap());
        assert!(!matches!(there, Ok(Some(_))), "{there:?}");
    }
}
