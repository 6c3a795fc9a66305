//! Mutual TLS: the files of this program as an HTTPS client, and as a listener.

use std::path::Path;
use std::sync::Arc;

use openssl::pkey::PKey;
use openssl::ssl::{SslAcceptor, SslFiletype, SslMethod, SslVerifyMode};
use ureq::tls::{Certificate, ClientCert, PemItem, PrivateKey, RootCerts, TlsConfig, TlsProvider, parse_pem};

use crate::settings::TlsFiles;

/// No file of certificates is as long.
const LONGEST: u64 = 16 << 20;

/// # Errors
/// A file cannot be read, or has no certificate or key.
pub(crate) fn client(files: Option<&TlsFiles>) -> Result<TlsConfig, String> {
    let config = TlsConfig::builder().provider(TlsProvider::NativeTls);
    let Some(files) = files else { return Ok(config.build()) };
    let key = ropewalk_files::read(&files.key, LONGEST).map_err(|error| at(&files.key, error))?;
    // The client takes PKCS #8 only; files have other forms too.
    let key = PKey::private_key_from_pem(&key).and_then(|key| key.private_key_to_pem_pkcs8());
    let key = key.map_err(|error| at(&files.key, error))?;
    let key = PrivateKey::from_pem(&key).map_err(|error| at(&files.key, error))?;
    let own = ClientCert::new_with_certs(&certificates(&files.certificate)?, key);
    let authorities = RootCerts::Specific(Arc::new(certificates(&files.authorities)?));
    Ok(config.client_cert(Some(own)).root_certs(authorities).build())
}

/// A listener that accepts only clients with a certificate of the authorities.
///
/// # Errors
/// A file cannot be read, or has no certificate or key.
pub(crate) fn acceptor(files: &TlsFiles) -> Result<SslAcceptor, String> {
    let failed = |error: openssl::error::ErrorStack| error.to_string();
    let mut acceptor = SslAcceptor::mozilla_intermediate_v5(SslMethod::tls()).map_err(failed)?;
    acceptor.set_certificate_chain_file(&files.certificate).map_err(|error| at(&files.certificate, error))?;
    acceptor.set_private_key_file(&files.key, SslFiletype::PEM).map_err(|error| at(&files.key, error))?;
    acceptor.set_ca_file(&files.authorities).map_err(|error| at(&files.authorities, error))?;
    acceptor.set_verify(SslVerifyMode::PEER | SslVerifyMode::FAIL_IF_NO_PEER_CERT);
    Ok(acceptor.build())
}

fn certificates(path: &Path) -> Result<Vec<Certificate<'static>>, String> {
    let text = ropewalk_files::read(path, LONGEST).map_err(|error| at(path, error))?;
    let mut found = Vec::new();
    for item in parse_pem(&text) {
        if let PemItem::Certificate(certificate) = item.map_err(|error| at(path, error))? {
            found.push(certificate);
        }
    }
    match found.is_empty() {
        true => Err(at(path, "there is no certificate in it")),
        false => Ok(found),
    }
}

fn at(path: &Path, error: impl std::fmt::Display) -> String {
    format!("{}: {error}", path.display())
}
