use std::time::{Duration, Instant, SystemTime};

use crate::claims::{Claims, Profile, issuer};
use crate::error::{SetupError, TokenError};
use crate::issuer::Issuer;
use crate::jws::Unverified;
use crate::keys::Keys;
use crate::scope::Capabilities;
use crate::shown::shown;

/// Tolerated difference between clocks.
pub const LEEWAY: Duration = Duration::from_secs(60);

/// Verifies tokens of the configured issuers. Threads share one verifier.
pub struct Verifier(Vec<Trusted>);

struct Trusted {
    issuer: Issuer,
    keys: Keys,
}

/// The subject of a verified token, and its rights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    pub profile: Profile,
    pub issuer: String,
    /// Unique only within the issuer.
    pub subject: String,
    /// The token's identifier (`jti`), for logs.
    pub id: Option<String>,
    /// The claim `wlcg.groups`.
    pub groups: Vec<String>,
    /// Rights from the scopes; empty if no scope is about storage.
    pub capabilities: Capabilities,
    /// The token is accepted until this time plus [`LEEWAY`].
    pub expires: SystemTime,
}

impl Verifier {
    /// Reads key files immediately. Published keys are fetched when the first token arrives.
    ///
    /// # Errors
    /// An issuer is invalid or listed twice, or a key file cannot be used.
    pub fn new(issuers: Vec<Issuer>) -> Result<Self, SetupError> {
        let mut trusted: Vec<Trusted> = Vec::with_capacity(issuers.len());
        for issuer in issuers {
            issuer.check()?;
            if trusted.iter().any(|other| other.issuer.url == issuer.url) {
                return Err(SetupError::Twice(issuer.url));
            }
            let keys =
                Keys::new(&issuer).map_err(|source| SetupError::Keys { url: issuer.url.clone(), source })?;
            trusted.push(Trusted { issuer, keys });
        }
        Ok(Self(trusted))
    }

    /// Verifies a token. The call may wait for an issuer's keys: up to some seconds if the issuer
    /// does not answer.
    ///
    /// # Errors
    /// The reason for which the token is refused.
    pub fn verify(&self, token: &[u8], now: SystemTime) -> Result<Grant, TokenError> {
        let token = Unverified::parse(token)?;
        let claimed = issuer(&token.claims)?;
        // Compare bytes (RFC 7519 section 4.1.1): a URL that only looks equal is another issuer.
        let trusted = self.0.iter().find(|trusted| trusted.issuer.url == claimed);
        let Trusted { issuer, keys } = trusted.ok_or_else(|| TokenError::Issuer(shown(claimed)))?;
        keys.get(token.key.as_deref(), Instant::now())?.verify(&token)?;
        let claims = Claims::check(&token.claims, issuer, now)?;
        Ok(Grant {
            profile: claims.profile,
            issuer: issuer.url.clone(),
            subject: claims.subject,
            id: claims.id,
            groups: claims.groups,
            capabilities: claims.capabilities,
            expires: claims.expires,
        })
    }
}
