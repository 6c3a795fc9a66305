//! Fetches a document by HTTPS.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use openssl::error::ErrorStack;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, TlsProvider, parse_pem};

use super::discovery::{Fetch, FetchError};
use crate::error::KeysError;
use crate::jwk::LONGEST_SET;

/// Maximum size of a file of authorities, in bytes.
const LONGEST_LIST: u64 = 16 << 20;

/// An HTTPS client. It uses only HTTPS, and does not follow redirections: no issuer has any there,
/// and each would let an attacker lead us elsewhere. A document has a maximum size, and a request
/// ends at its deadline. The proxy that the environment names (`HTTPS_PROXY`) is used.
pub(crate) struct Https(ureq::Agent);

impl Https {
    pub(crate) fn new(authorities: Option<&Path>) -> Result<Self, KeysError> {
        let roots = match authorities {
            None => RootCerts::PlatformVerifier,
            Some(path) => {
                let wrong = |reason: String| KeysError::File { path: path.to_owned(), reason };
                let text = ropewalk_files::read(path, LONGEST_LIST).map_err(|e| wrong(e.to_string()))?;
                let mut certificates: Vec<Certificate<'static>> = Vec::new();
                for item in parse_pem(&text) {
                    if let PemItem::Certificate(certificate) = item.map_err(|e| wrong(e.to_string()))? {
                        certificates.push(certificate);
                    }
                }
                if certificates.is_empty() {
                    return Err(wrong("there is no certificate in it".into()));
                }
                RootCerts::Specific(Arc::new(certificates))
            }
        };
        let tls = TlsConfig::builder().provider(TlsProvider::NativeTls).root_certs(roots).build();
        let config = ureq::Agent::config_builder()
            .https_only(true)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .http_status_as_error(false)
            .max_idle_connections(0)
            .user_agent(concat!("ropewalk/", env!("CARGO_PKG_VERSION")))
            .tls_config(tls)
            .build();
        Ok(Self(ureq::Agent::new_with_config(config)))
    }
}

impl Fetch for Https {
    fn get(&self, url: &str, deadline: Instant) -> Result<Vec<u8>, FetchError> {
        let failed = |error: ureq::Error| FetchError::Failed(error.to_string());
        // Do not pass 0, which could mean no limit.
        let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        // Errors that earlier checks on this thread left would be attributed to this connection.
        drop(ErrorStack::get());
        let request = self.0.get(url).config().timeout_global(Some(left)).build();
        let mut response = request.header("Accept", "application/json").call().map_err(failed)?;
        match response.status().as_u16() {
            200 => response.body_mut().with_config().limit(LONGEST_SET as u64).read_to_vec().map_err(failed),
            404 | 410 => Err(FetchError::Missing),
            status => Err(FetchError::Failed(format!("the answer is HTTP status {status}"))),
        }
    }
}
