use std::path::PathBuf;

use crate::error::SetupError;

/// Somebody whose tokens are accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Issuer {
    /// Exactly as tokens have it in `iss`, a last slash included: `https://issuer.example/`.
    pub url: String,
    /// Names of this service, one of which a token has to have in `aud`.
    pub audiences: Vec<String>,
    /// Also accept tokens for any service (`https://wlcg.cern.ch/jwt/v1/any`, or `ANY` in SciTokens).
    pub any_audience: bool,
    pub keys: KeyPlace,
}

/// Where an issuer's public keys come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyPlace {
    /// A JWK set (RFC 7517), read again when it has changed.
    File(PathBuf),
    /// What the issuer itself publishes (OpenID Connect Discovery, RFC 8414), by HTTPS. `authorities`: certificates (PEM) that
    /// vouch for its server; `None`: those that the system trusts.
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

/// Host and port of a URL as issuers have it (RFC 8414 section 2), and the path behind.
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
