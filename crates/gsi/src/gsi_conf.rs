//! `gsi.conf`: settings of GSI for a whole host, `KEY=value` a line; the environment goes before it.

use openssl::ssl::SslVersion;

use crate::host::NameCompatibility;

/// What the file and the environment say; `None` where they say nothing (or 0).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GsiConf {
    pub min_version: Option<SslVersion>,
    pub max_version: Option<SslVersion>,
    pub name_compatibility: Option<NameCompatibility>,
    pub ciphers: Option<String>,
    pub server_order: Option<bool>,
    /// Who besides root may own the credentials of virtual hosts.
    pub vhost_cred_owner: Option<String>,
}

/// A line that says nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("gsi.conf: line {line}: {reason}")]
pub struct GsiConfError {
    pub line: usize,
    pub reason: String,
}

const KEYS: [&str; 6] = [
    "MIN_TLS_PROTOCOL",
    "MAX_TLS_PROTOCOL",
    "NAME_COMPATIBILITY",
    "CIPHERS",
    "SERVER_CIPHER_ORDER",
    "VHOST_CRED_OWNER",
];

impl GsiConf {
    /// Reads the file's text; `environment` is asked for `GLOBUS_GSSAPI_<KEY>`. Keys of other programs' versions are
    /// passed over.
    pub fn parse(text: &str, environment: impl Fn(&str) -> Option<String>) -> Result<Self, GsiConfError> {
        let mut conf = Self::default();
        for (index, line) in text.lines().enumerate() {
            let fail = |reason| GsiConfError { line: index + 1, reason };
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let (key, value) = line.split_once('=').ok_or_else(|| fail(format!("no `=` in {line:?}")))?;
            conf.set(key.trim(), unquoted(value.trim())).map_err(fail)?;
        }
        for key in KEYS {
            if let Some(value) = environment(&format!("GLOBUS_GSSAPI_{key}")) {
                conf.set(key, value.trim()).map_err(|reason| GsiConfError { line: 0, reason })?;
            }
        }
        Ok(conf)
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        match key {
            "MIN_TLS_PROTOCOL" => self.min_version = version(key, value)?,
            "MAX_TLS_PROTOCOL" => self.max_version = version(key, value)?,
            "NAME_COMPATIBILITY" => {
                self.name_compatibility = Some(match value {
                    "STRICT_GT2" => NameCompatibility::StrictGt2,
                    "HYBRID" => NameCompatibility::Hybrid,
                    "STRICT_RFC2818" => NameCompatibility::StrictRfc2818,
                    _ => return Err(format!("{key} is STRICT_GT2, HYBRID or STRICT_RFC2818, not {value:?}")),
                });
            }
            "CIPHERS" => self.ciphers = Some(value.to_owned()),
            "SERVER_CIPHER_ORDER" => {
                self.server_order = Some(match value.to_ascii_lowercase().as_str() {
                    "true" | "yes" | "1" => true,
                    "false" | "no" | "0" => false,
                    _ => return Err(format!("{key} is true or false, not {value:?}")),
                });
            }
            "VHOST_CRED_OWNER" => self.vhost_cred_owner = Some(value.to_owned()),
            _ => {}
        }
        Ok(())
    }
}

/// TLS before 1.2 is not spoken whatever the file says (RFC 8996).
fn version(key: &str, value: &str) -> Result<Option<SslVersion>, String> {
    match value {
        "0" | "" => Ok(None),
        "TLS1_2_VERSION" => Ok(Some(SslVersion::TLS1_2)),
        "TLS1_3_VERSION" => Ok(Some(SslVersion::TLS1_3)),
        "TLS1_VERSION_DEPRECATED" | "TLS1_1_VERSION_DEPRECATED" if key.starts_with("MIN") => {
            Ok(Some(SslVersion::TLS1_2))
        }
        _ => Err(format!("{key} is 0, TLS1_2_VERSION or TLS1_3_VERSION, not {value:?}")),
    }
}

fn unquoted(value: &str) -> &str {
    let inner = |quote| value.strip_prefix(quote).and_then(|rest| rest.strip_suffix(quote));
    inner('"').or_else(|| inner('\'')).unwrap_or(value)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn file_and_environment() {
        let text =
            "# x\nMIN_TLS_PROTOCOL=TLS1_2_VERSION\nNAME_COMPATIBILITY=HYBRID\nCIPHERS=\"HIGH\"\nMYSTERY=1\n";
        let conf = GsiConf::parse(text, |key| {
            (key == "GLOBUS_GSSAPI_MAX_TLS_PROTOCOL").then(|| "TLS1_2_VERSION".into())
        })
        .unwrap();
        assert_eq!(conf.min_version, Some(SslVersion::TLS1_2));
        assert_eq!(conf.max_version, Some(SslVersion::TLS1_2));
        assert_eq!(conf.name_compatibility, Some(NameCompatibility::Hybrid));
        assert_eq!(conf.ciphers.as_deref(), Some("HIGH"));
        assert_eq!(GsiConf::parse("CIPHERS", |_| None).unwrap_err().line, 1);
        assert!(GsiConf::parse("NAME_COMPATIBILITY=NONE", |_| None).is_err());
    }
}
