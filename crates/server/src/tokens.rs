//! Log-in with bearer tokens.

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use ropewalk_protocol::command::Password;
use ropewalk_protocol::path::VirtualPath;
use ropewalk_protocol::server::{Failure, TOKEN_USER};
use ropewalk_tokens::{Grant, LEEWAY, Verifier};

use crate::accounts::{self, Login};
use crate::config::{TokenIssuer, Tokens};
use crate::context::Context;
use crate::host::Host;
use crate::paths::Scope;

/// The issuers whose tokens are accepted.
pub(crate) struct TokenAuthority {
    verifier: Verifier,
    issuers: Vec<(TokenIssuer, VirtualPath)>,
}

/// Whether the password is to be taken for a token. Nothing else decides: what only looks like one is a password.
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
}

impl TokenIssuer {
    /// The user that a token stands for.
    fn user_of(&self, grant: &Grant) -> Option<&str> {
        let fits = |subject: &Option<String>, group: &Option<String>| {
            subject.as_ref().is_none_or(|subject| *subject == grant.subject)
                && group.as_ref().is_none_or(|group| grant.groups.contains(group))
        };
        let mapped = self.map.iter().find(|mapping| fits(&mapping.subject, &mapping.group));
        mapped.map(|mapping| &mapping.user).or(self.user.as_ref()).map(String::as_str)
    }
}

/// May take as long as fetching an issuer's keys does.
pub(crate) fn log_in(
    host: &Host,
    context: &Context,
    secured: bool,
    token: &Password,
) -> Result<Login, Failure> {
    let settings = &context.settings;
    let denied = |text: String| Failure::LoginDenied(text);
    // The session has said so at USER.
    if !secured {
        return Err(denied("A bearer token is taken on a protected control connection only.".into()));
    }
    let authority = settings.tokens.as_ref();
    let authority = authority.ok_or_else(|| denied("This server takes no bearer tokens.".into()))?;
    let now = SystemTime::now();
    let grant = authority.verifier.verify(token.expose(), now);
    let grant = grant.map_err(|error| denied(format!("The bearer token is refused: {error}.")))?;
    let found = authority.issuers.iter().find(|(issuer, _)| issuer.url == grant.issuer);
    let (issuer, base) = found.ok_or_else(|| denied("The bearer token's issuer is not known.".into()))?;
    let capabilities = &grant.capabilities;
    // What is said of other services is said: groups, and so the user's own rights, are for tokens that name no capability.
    if capabilities.is_empty() && (issuer.scopes_required || capabilities.are_stated()) {
        return Err(denied(
            "The bearer token is refused: it has no scope of storage (storage.read:/path, read:/path), and so permits nothing \
             here."
                .into(),
        ));
    }
    let Some(user) = issuer.user_of(&grant) else {
        return Err(denied(format!(
            "No user is set up here for the subject {:?} of {}.",
            grant.subject, grant.issuer
        )));
    };
    let mut login = accounts::log_in_as(host, settings, user)?;
    login.vouched = Some((grant.subject.clone(), grant.issuer.clone()));
    login.account.third_party &= issuer.third_party;
    let left = (grant.expires + LEEWAY).duration_since(now).unwrap_or_default();
    login.expires = Instant::now().checked_add(left);
    tracing::info!(
        session = context.id, peer = %context.peer, user, issuer = grant.issuer, subject = grant.subject,
        token = grant.id, rights = %grant.capabilities, valid = ?left, "bearer token accepted"
    );
    if !grant.capabilities.is_empty() {
        let capabilities = Arc::new(grant.capabilities.beneath(base));
        login.set_scope(Scope { token: Some(capabilities), ..(*login.scope).clone() });
    }
    Ok(login)
}
