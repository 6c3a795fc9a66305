use std::path::PathBuf;

use ropewalk_protocol::path::VirtualPath;
use ropewalk_security::valid_user_name;
use ropewalk_tokens::{Issuer, KeyPlace};
use serde::{Deserialize, Serialize};

/// Log-in with bearer tokens: WLCG profile 1.x and SciTokens 2.0. A client sends them as the
/// password of the user `:token:`, on a protected control connection only.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Tokens {
    /// The issuers whose tokens are accepted.
    pub issuers: Vec<TokenIssuer>,
}

/// An issuer whose tokens are accepted, and the rights that they grant.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct TokenIssuer {
    /// The issuer exactly as in its tokens (`iss`), with or without a slash at the end.
    pub url: String,
    /// Names of this service; the audience of a token (`aud`) has to be one of them. Default: none.
    #[serde(default)]
    pub audiences: Vec<String>,
    /// Also accept tokens for any service: `https://wlcg.cern.ch/jwt/v1/any`, or `ANY` in
    /// SciTokens. Default `true`.
    #[serde(default = "yes")]
    pub any_audience: bool,
    /// File with the issuer's public keys (JWKS); it is read again when it changes. Default: none,
    /// the keys are fetched from the issuer by HTTPS (discovery).
    #[serde(default)]
    pub keys: Option<PathBuf>,
    /// Certificates (PEM) that vouch for the issuer's HTTPS server. Default: those that the system
    /// trusts.
    #[serde(default)]
    pub authorities: Option<PathBuf>,
    /// The directory from which paths in scopes count, as the user sees it. Default `/`.
    #[serde(default = "root")]
    pub base_path: String,
    /// The user of sessions for which `map` has no entry; the settings of `users` and `defaults`
    /// apply. Default: none, only subjects in `map` may log in.
    #[serde(default)]
    pub user: Option<String>,
    /// Users for subjects and groups; the first entry that matches counts.
    #[serde(default)]
    pub map: Vec<TokenMapping>,
    /// Refuse tokens without a scope of storage. Otherwise such a token permits everything that its
    /// user may do, which is meant for issuers that only state groups. Default `true`.
    #[serde(default = "yes")]
    pub scopes_required: bool,
    /// The server may send data to, and accept data from, hosts other than the client, if the user
    /// may. Default `true`.
    #[serde(default = "yes")]
    pub third_party: bool,
}

/// The user that a token stands for. All conditions have to match.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct TokenMapping {
    /// The token's `sub`.
    #[serde(default)]
    pub subject: Option<String>,
    /// One of `wlcg.groups`, such as `/vo/admins`.
    #[serde(default)]
    pub group: Option<String>,
    /// The user of the session.
    pub user: String,
}

fn yes() -> bool {
    true
}

fn root() -> String {
    "/".into()
}

impl TokenIssuer {
    pub(crate) fn issuer(&self) -> Issuer {
        let keys = match &self.keys {
            Some(path) => KeyPlace::File(path.clone()),
            None => KeyPlace::Discovery { authorities: self.authorities.clone() },
        };
        Issuer {
            url: self.url.clone(),
            audiences: self.audiences.clone(),
            any_audience: self.any_audience,
            keys,
        }
    }

    /// The directory from which paths in scopes count.
    pub(crate) fn base(&self) -> Result<VirtualPath, String> {
        let wrong = || format!("{:?} is not an absolute path", self.base_path);
        if !self.base_path.starts_with('/') {
            return Err(wrong());
        }
        VirtualPath::parse(self.base_path.as_bytes()).map_err(|_| wrong())
    }

    /// Checks the settings of one issuer.
    fn check(&self) -> Result<(), String> {
        self.base().map_err(|text| format!("base_path: {text}"))?;
        if self.keys.is_some() && self.authorities.is_some() {
            return Err("authorities are for keys that are fetched, and there is a file of keys".into());
        }
        if self.user.is_none() && self.map.is_empty() {
            return Err("nobody could log in: name a user, or users in map".into());
        }
        for mapping in &self.map {
            if mapping.subject.is_none() && mapping.group.is_none() {
                return Err("an entry of map has neither subject nor group".into());
            }
        }
        let mut users = self.user.iter().chain(self.map.iter().map(|mapping| &mapping.user));
        match users.find(|name| !valid_user_name(name)) {
            Some(name) => Err(format!("{name:?} cannot be a user's name")),
            None => Ok(()),
        }
    }
}

impl Tokens {
    /// Checks the settings of all issuers.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.issuers.is_empty() {
            return Err("there is no issuer".into());
        }
        self.issuers
            .iter()
            .try_for_each(|issuer| issuer.check().map_err(|text| format!("{}: {text}", issuer.url)))
    }

    pub(crate) fn paths(&mut self) -> impl Iterator<Item = &mut Option<PathBuf>> {
        self.issuers.iter_mut().flat_map(|issuer| [&mut issuer.keys, &mut issuer.authorities])
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::Config;

    fn check(text: &str) -> String {
        let config =
            Config::parse(&format!("[[tokens.issuers]]\nurl = 'https://i.example'\n{text}")).unwrap();
        config.tokens.unwrap().check().err().unwrap_or_default()
    }

    #[test]
    fn token_settings_survive_round_trip() {
        let text = "[[tokens.issuers]]\nurl = 'https://i.example'\nuser = 'vo'\n\
                    map = [{ group = '/vo/admins', user = 'admin' }]\n";
        let config = Config::parse(text).unwrap();
        assert_eq!(Config::parse(&config.to_toml().unwrap()).unwrap(), config);
        let issuer = &config.tokens.unwrap().issuers[0];
        assert!(issuer.any_audience && issuer.scopes_required && issuer.third_party);
        assert_eq!(issuer.base().unwrap(), VirtualPath::root());
        assert!(Config::parse("[[tokens.issuers]]\nurl = 'https://i.example'\nuzer = 'vo'").is_err());
    }

    #[test]
    fn token_settings_that_are_wrong_are_reported() {
        assert!(Tokens::default().check().unwrap_err().contains("no issuer"));
        assert!(check("").contains("nobody could log in"));
        assert!(check("user = 'a/b'").contains("cannot be a user"));
        assert!(check("map = [{ user = 'a' }]").contains("neither subject nor group"));
        assert!(check("user = 'a'\nbase_path = 'vo'").contains("base_path"));
        assert!(check("user = 'a'\nkeys = 'k'\nauthorities = 'a'").contains("file of keys"));
        assert_eq!(check("user = 'a'"), "");
    }
}
