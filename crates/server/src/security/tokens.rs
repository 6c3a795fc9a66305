//! Log-in with bearer tokens.

use std::time::SystemTime;

use ropewalk_protocol::path::VirtualPath;
use ropewalk_protocol::server::{Failure, TOKEN_USER};
use ropewalk_tokens::{Grant, Verifier};

use crate::config::{TokenIssuer, Tokens};

/// The issuers whose tokens are accepted.
pub(crate) struct TokenAuthority {
    verifier: Verifier,
    issuers: Vec<(TokenIssuer, VirtualPath)>,
}

/// Whether the password is a token. Only the user name decides: a password that looks like a token
/// is a password.
pub(crate) fn is_token(user: &[u8]) -> bool {
    user == TOKEN_USER
}

impl TokenAuthority {
    pub(crate) fn load(config: &Tokens) -> Result<Self, String> {
        config.check()?;
        let verifier = Verifier::new(config.issuers.iter().map(TokenIssuer::issuer).collect());
        let issuers = config.issuers.iter().map(|issuer| Ok((issuer.clone(), issuer.base()?)));
        Ok(Self {
            verifier: verifier.map_err(|e| e.to_string())?,
            issuers: issuers.collect::<Result<_, String>>()?,
        })
    }

    /// Verifies a token; this may fetch the keys of its issuer. Returns what the token grants, the
    /// settings of its issuer, and the directory from which the paths in its scopes count.
    pub(crate) fn verify(
        &self,
        token: &[u8],
        now: SystemTime,
    ) -> Result<(Grant, &TokenIssuer, &VirtualPath), Failure> {
        let denied = |text: String| Failure::LoginDenied(text);
        let grant = self.verifier.verify(token, now);
        let grant = grant.map_err(|error| denied(format!("The bearer token is refused: {error}.")))?;
        let found = self.issuers.iter().find(|(issuer, _)| issuer.url == grant.issuer);
        let (issuer, base) = found.ok_or_else(|| denied("The bearer token's issuer is not known.".into()))?;
        Ok((grant, issuer, base))
    }
}

impl TokenIssuer {
    /// The user to whom a token belongs.
    pub(crate) fn user_of(&self, grant: &Grant) -> Option<&str> {
        let fits = |subject: &Option<String>, group: &Option<String>| {
            subject.as_ref().is_none_or(|subject| *subject == grant.subject)
                && group.as_ref().is_none_or(|group| grant.groups.contains(group))
        };
        let mapped = self.map.iter().find(|mapping| fits(&mapping.subject, &mapping.group));
        mapped.map(|mapping| &mapping.user).or(self.user.as_ref()).map(String::as_str)
    }
}
