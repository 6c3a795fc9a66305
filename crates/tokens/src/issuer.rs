use std::path::PathBuf;

use crate::error::SetupError;

/// An issuer whose tokens are accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Issuer {
    /// Exactly as in the `iss` claim of tokens, including a final slash: `https://issuer.example/`.
    pub url: String,
    /// Names of this service. A token must have one of them in `aud`.
    pub audiences: Vec<String>,
    /// Whether to accept also tokens for any service (`https://wlcg.cern.ch/jwt/v1/any`, or `ANY`
    /// in SciTokens).
    pub any_audience: bool,
    pub keys: KeyPlace,
}

/// Source of an issuer's public keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyPlace {
    /// A file with a JWK set (RFC 7517), read again after it has changed.
    File(PathBuf),
    /// The documents that the issuer publishes by HTTPS (OpenID Connect Discovery, RFC 8414).
    /// `authorities`: a PEM file of the certificate authorities to trust for the issuer's server;
    /// `None`: those that the system trusts.
    Discovery { authorities: Option<PathBuf> },
}

impl Issuer {
    pub(crate) fn check(&self) -> Result<(), SetupError> {
        let wrong = |reason| Err(SetupError::Url { url: self.url.clone(), reason });
        match https_host(&self.url) {
            Ok(_) if self.audiences.is_empty() && !self.any_audience => {
                Err(SetupError::NoAudience(self.url.clone()))
            }
            Ok(_) => Ok(()),
            Err(reason) => wrong(reason),
        }
    }
}

/// Splits an issuer's URL (RFC 8414 section 2) into host with port, and path.
pub(crate) fn https_host(url: &str) -> Result<(&str, &str), &'static str> {
    let rest = url.strip_prefix("https://").ok_or("it does not begin with https://")?;
    if !rest.bytes().all(|b| b.is_ascii_graphic()) {
        return Err("it has spaces or other characters that do not belong into a URL");
    }
    if rest.contains(['?', '#']) {
        return Err("it has a query or a fragment");
    }
    let (host, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
    if host.is_empty() || host.contains('@') {
        return Err("it has no plain host");
    }
    Ok((host, path))
}
