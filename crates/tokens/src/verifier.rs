use std::time::{Duration, Instant, SystemTime};

use crate::claims::{Claims, Profile, issuer};
use crate::error::{SetupError, TokenError};
use crate::issuer::Issuer;
use crate::jws::Unverified;
use crate::keys::Keys;
use crate::scope::Capabilities;
use crate::shown::shown;

/// Clocks may differ by so much.
pub const LEEWAY: Duration = Duration::from_secs(60);

/// Verifies tokens of the issuers that it was made with. Shared among threads.
pub struct Verifier(Vec<Trusted>);

struct Trusted {
    issuer: Issuer,
    keys: Keys,
}

/// Who a token is about, and what it permits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    pub profile: Profile,
    pub issuer: String,
    /// Unique for the issuer only.
    pub subject: String,
    /// The token's own name, for logs.
    pub id: Option<String>,
    /// `wlcg.groups`
    pub groups: Vec<String>,
    /// What the scopes say; empty where none is about storage.
    pub capabilities: Capabilities,
    /// Until then, and [`LEEWAY`] more.
    pub expires: SystemTime,
}

impl Verifier {
    /// Key files are read at once; what is published is fetched when the first token comes.
    ///
    /// # Errors
    /// An issuer that cannot be one or is there twice, or a key file that is of no use.
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

    /// May take as long as fetching an issuer's keys does: some seconds where it does not answer.
    ///
    /// # Errors
    /// Why the token is refused.
    pub fn verify(&self, token: &[u8], now: SystemTime) -> Result<Grant, TokenError> {
        let token = Unverified::parse(token)?;
        let claimed = issuer(&token.claims)?;
        // Byte by byte (RFC 7519 section 4.1.1): what looks alike is another one.
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
