//! TLS 1.3 of the connections: it encrypts, and it authenticates no one.
//!
//! The accepting side has a key of its own for each process, which it shows as a raw public key
//! (RFC 7250); the connecting side takes any. A man in the middle is found by the layers above,
//! which compare the value that both sides export from their handshake (see [`binding`]).

use std::sync::{Arc, OnceLock};

use quinn_proto::crypto::Session;
use quinn_proto::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use ring::rand::SystemRandom;
use ring::signature::Ed25519KeyPair;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::ring::{cipher_suite, default_provider, sign};
use rustls::crypto::{CryptoProvider, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::AlwaysResolvesServerRawPublicKeys;
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;
use rustls::{ClientConfig, DigitallySignedStruct, Error, ServerConfig, SignatureScheme};

/// The application protocol (ALPN): other programs are refused during the handshake.
const PROTOCOL: &[u8] = b"ropewalk-data";
/// The label of exported keying material (RFC 5705) that identifies a connection.
const BINDING: &[u8] = b"EXPORTER-ropewalk-data";

/// The two roles.
#[derive(Clone)]
pub(crate) struct Tls {
    pub(crate) client: Arc<QuicClientConfig>,
    pub(crate) server: Arc<QuicServerConfig>,
}

impl Tls {
    /// Returns the configuration of this process, which the first call makes.
    ///
    /// # Errors
    /// The system has no random bytes.
    pub(crate) fn of_this_process() -> Result<Self, Error> {
        static ONCE: OnceLock<Result<Tls, Error>> = OnceLock::new();
        ONCE.get_or_init(Self::new).clone()
    }

    fn new() -> Result<Self, Error> {
        let provider = Arc::new(CryptoProvider {
            // AES-128 costs less than AES-256, and QUIC's first packets need it anyway.
            cipher_suites: vec![
                cipher_suite::TLS13_AES_128_GCM_SHA256,
                cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
            ],
            ..default_provider()
        });
        let missing = |_| Error::General("no cipher suite for the first packets of QUIC".to_owned());
        let mut client = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AnyKey(Arc::clone(&provider))))
            .with_no_client_auth();
        client.alpn_protocols = vec![PROTOCOL.to_vec()];
        client.enable_sni = false;
        client.resumption = rustls::client::Resumption::disabled();
        let mut server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])?
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(Arc::new(own_key()?))));
        server.alpn_protocols = vec![PROTOCOL.to_vec()];
        server.send_tls13_tickets = 0;
        Ok(Self {
            client: Arc::new(QuicClientConfig::try_from(client).map_err(missing)?),
            server: Arc::new(QuicServerConfig::try_from(server).map_err(missing)?),
        })
    }
}

fn own_key() -> Result<CertifiedKey, Error> {
    let random = || Error::General("the system has no random bytes".to_owned());
    let document = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).map_err(|_| random())?;
    let key = sign::any_eddsa_type(&PrivatePkcs8KeyDer::from(document.as_ref()))?;
    let public = key.public_key().ok_or_else(random)?;
    Ok(CertifiedKey::new(vec![CertificateDer::from(public.to_vec())], key))
}

/// Returns a value that both sides of a connection have in common and that no other connection has;
/// `None` before the handshake is complete.
pub(crate) fn binding(session: &dyn Session) -> Option<[u8; 32]> {
    let mut value = [0; 32];
    session.export_keying_material(&mut value, BINDING, b"").ok()?;
    Some(value)
}

/// Takes any raw public key whose owner has signed the handshake.
#[derive(Debug)]
struct AnyKey(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyKey {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("QUIC has TLS 1.3".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        key: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let key = SubjectPublicKeyInfoDer::from(key.as_ref());
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls13_signature_with_raw_key(message, &key, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}
