//! Targets: the servers that sessions name, and the rules that each is held to.

use ropewalk_protocol::url::{Scheme, Url};

use crate::config::GatewayConfig;

/// The rules for the addresses of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rules {
    /// The list of permitted targets.
    Listed,
    /// Any public address: a session that is authenticated there, without a list of targets.
    Public,
    /// Any address: the operator has named the target.
    Configured,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) url: Url,
    pub(crate) rules: Rules,
}

impl GatewayConfig {
    /// Finds the target that a session has named.
    ///
    /// # Errors
    /// The text for the client.
    pub(crate) fn target(&self, named: Option<&str>) -> Result<Target, String> {
        if let Some(named) = named {
            return if named.contains("://") { self.by_url(named) } else { self.by_name(named) };
        }
        match self.default.as_deref() {
            Some(default) if default.contains("://") => {
                Ok(Target { url: parse(default)?, rules: Rules::Configured })
            }
            Some(default) => self.by_name(default),
            None => Err("Name a server: USER name::gsiftp://host:port/ or USER name::site.".to_owned()),
        }
    }

    fn by_name(&self, name: &str) -> Result<Target, String> {
        let site = self.sites.get(name);
        let site = site.ok_or_else(|| format!("The gateway has no site {name:?}."))?;
        Ok(Target { url: parse(&site.url)?, rules: Rules::Configured })
    }

    fn by_url(&self, text: &str) -> Result<Target, String> {
        let url = parse(text)?;
        let rules = match (self.allow_targets.is_empty(), url.scheme) {
            (false, _) => Rules::Listed,
            (true, Scheme::Ftp) => {
                return Err(
                    "The gateway permits no ftp:// target: its operator has to list it (--allow-target)."
                        .to_owned(),
                );
            }
            (true, _) => Rules::Public,
        };
        Ok(Target { url, rules })
    }
}

/// Reads the URL of a server.
///
/// # Errors
/// The text for the client.
pub(crate) fn parse(text: &str) -> Result<Url, String> {
    if text.chars().any(char::is_control) {
        return Err("The target has a control character.".to_owned());
    }
    let url = Url::parse(text).map_err(|error| format!("The target is no server: {error}."))?;
    match url.scheme {
        Scheme::Gsiftp | Scheme::Ftp | Scheme::Ftpes | Scheme::Ftps => {}
        Scheme::Sshftp => return Err("The gateway has no targets through ssh.".to_owned()),
    }
    if url.user.is_some() || url.password.is_some() {
        return Err("The target must not have a user or a password in its URL.".to_owned());
    }
    if url.path.as_slice() != b"/" {
        return Err("The target is a server: the URL must not have a path.".to_owned());
    }
    if text.contains("::gsiftp:") || text.contains("::ftp") {
        return Err("The target cannot be behind another target.".to_owned());
    }
    Ok(url)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn config(more: &str) -> GatewayConfig {
        toml::from_str(&format!("{more}\n[sites.cern]\nurl = 'gsiftp://dtn.cern.example/'")).unwrap()
    }

    #[test]
    fn target_is_a_url_a_site_or_the_default() {
        let listed = config("allow_targets = '127.0.0.1'\ndefault = 'cern'");
        for (named, rules, host) in [
            (Some("ftp://127.0.0.1:2811/"), Rules::Listed, "127.0.0.1"),
            (Some("gsiftp://h"), Rules::Listed, "h"),
            (Some("cern"), Rules::Configured, "dtn.cern.example"),
            (None, Rules::Configured, "dtn.cern.example"),
        ] {
            let target = listed.target(named).unwrap();
            assert_eq!((target.rules, target.url.host.as_str()), (rules, host), "{named:?}");
        }
        assert_eq!(config("").target(Some("gsiftp://h/")).unwrap().rules, Rules::Public);
    }

    #[test]
    fn target_of_another_form_is_refused() {
        let config = config("");
        for (named, reason) in [
            (None, "Name a server"),
            (Some("ftp://h/"), "--allow-target"),
            (Some("nowhere"), "no site"),
            (Some("http://h/"), "no server"),
            (Some("file:///etc/passwd"), "no server"),
            (Some("sshftp://h/"), "ssh"),
            (Some("gsiftp://ada:secret@h/"), "user"),
            (Some("gsiftp://ada@h/"), "user"),
            (Some("gsiftp://h/etc/passwd"), "path"),
            (Some("gsiftp://"), "no server"),
            (Some("gsiftp://h:99999/"), "no server"),
            (Some("gsiftp://h\r\nQUIT/"), "control"),
        ] {
            let text = config.target(named).unwrap_err();
            assert!(text.contains(reason), "{named:?}: {text}");
            assert!(!text.contains("secret"), "{text}");
        }
    }
}
