//! `gsi.conf`: settings of GSI for a whole host, one `KEY=value` per line. Variables of the
//! environment override the file.

use std::io::ErrorKind;
use std::path::Path;

use openssl::ssl::SslVersion;

use crate::host::NameCompatibility;

/// Largest accepted file, in bytes.
const LONGEST: u64 = 1 << 20;

/// The settings of the file and the environment. `None` if neither has the setting (or has 0).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GsiConf {
    pub min_version: Option<SslVersion>,
    pub max_version: Option<SslVersion>,
    pub name_compatibility: Option<NameCompatibility>,
    pub ciphers: Option<String>,
    pub server_order: Option<bool>,
    /// The user besides root that may own the credentials of virtual hosts: a name or a number.
    pub vhost_cred_owner: Option<String>,
    /// `BACKWARD_COMPATIBLE_MIC` and `ACCEPT_BACKWARD_COMPATIBLE_MIC`. They have no effect here:
    /// they concern signatures separate from the data (`gss_get_mic`), and no GridFTP program makes
    /// any.
    pub compatible_mic: Option<bool>,
    pub accept_compatible_mic: Option<bool>,
}

/// An invalid setting.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {reason}")]
pub struct GsiConfError {
    /// The file, a line of it, or a variable of the environment.
    pub place: String,
    pub reason: String,
}

const KEYS: [&str; 8] = [
    "BACKWARD_COMPATIBLE_MIC",
    "ACCEPT_BACKWARD_COMPATIBLE_MIC",
    "MIN_TLS_PROTOCOL",
    "MAX_TLS_PROTOCOL",
    "NAME_COMPATIBILITY",
    "CIPHERS",
    "SERVER_CIPHER_ORDER",
    "VHOST_CRED_OWNER",
];

impl GsiConf {
    /// Reads the file if it exists; `environment` as for [`GsiConf::parse`].
    ///
    /// # Errors
    /// The same errors as [`GsiConf::parse`]; or the file exists and cannot be read. Its
    /// restrictions must not be ignored.
    pub fn load(path: &Path, environment: impl Fn(&str) -> Option<String>) -> Result<Self, GsiConfError> {
        let text = match ropewalk_files::read_text(path, LONGEST) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
            Err(error) => {
                return Err(GsiConfError { place: path.display().to_string(), reason: error.to_string() });
            }
        };
        Self::parse(&text, environment)
    }

    /// Parses the text of the file and calls `environment` with `GLOBUS_GSSAPI_<KEY>` for each key.
    /// Unknown keys, as other versions have, are skipped.
    ///
    /// # Errors
    /// A line has no `=`, or a known key has an invalid value in the text or in the environment.
    pub fn parse(text: &str, environment: impl Fn(&str) -> Option<String>) -> Result<Self, GsiConfError> {
        let mut conf = Self::default();
        for (index, line) in text.lines().enumerate() {
            let fail = |reason| GsiConfError { place: format!("gsi.conf: line {}", index + 1), reason };
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let (key, value) = line.split_once('=').ok_or_else(|| fail(format!("no `=` in {line:?}")))?;
            conf.set(key.trim(), unquoted(value.trim())).map_err(fail)?;
        }
        for key in KEYS {
            let name = format!("GLOBUS_GSSAPI_{key}");
            if let Some(value) = environment(&name) {
                conf.set(key, value.trim()).map_err(|reason| GsiConfError { place: name, reason })?;
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
            "SERVER_CIPHER_ORDER" => self.server_order = Some(flag(key, value)?),
            "BACKWARD_COMPATIBLE_MIC" => self.compatible_mic = Some(flag(key, value)?),
            "ACCEPT_BACKWARD_COMPATIBLE_MIC" => self.accept_compatible_mic = Some(flag(key, value)?),
            "VHOST_CRED_OWNER" => self.vhost_cred_owner = Some(value.to_owned()),
            _ => {}
        }
        Ok(())
    }
}

fn flag(key: &str, value: &str) -> Result<bool, String> {
    match value.to_ascii_lowercase().as_str() {
        "true" | "yes" | "1" => Ok(true),
        "false" | "no" | "0" => Ok(false),
        _ => Err(format!("{key} is true or false, not {value:?}")),
    }
}

/// TLS before 1.2 is never used, whatever the file says (RFC 8996).
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
    fn parse_merges_file_and_environment() {
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
        assert_eq!(GsiConf::parse("CIPHERS", |_| None).unwrap_err().place, "gsi.conf: line 1");
        assert!(GsiConf::parse("NAME_COMPATIBILITY=NONE", |_| None).is_err());
    }

    #[test]
    fn load_of_unreadable_file_fails() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("gsi.conf");
        let load = || GsiConf::load(&path, |_| None);
        assert_eq!(load(), Ok(GsiConf::default()));
        std::fs::write(&path, "CIPHERS=HIGH\n").unwrap();
        assert_eq!(load().unwrap().ciphers.as_deref(), Some("HIGH"));
        std::fs::write(&path, b"CIPHERS=\xff\n").unwrap();
        assert_eq!(load().unwrap_err().place, path.display().to_string());
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert!(load().unwrap_err().to_string().contains("a directory"));
    }

    #[test]
    fn parse_takes_every_key_from_the_environment() {
        let with = |key: &str, value: &str| {
            let name = format!("GLOBUS_GSSAPI_{key}");
            GsiConf::parse("", |asked| (asked == name).then(|| value.to_owned()))
        };
        assert_eq!(with("MIN_TLS_PROTOCOL", "TLS1_3_VERSION").unwrap().min_version, Some(SslVersion::TLS1_3));
        assert_eq!(
            with("MIN_TLS_PROTOCOL", "TLS1_VERSION_DEPRECATED").unwrap().min_version,
            Some(SslVersion::TLS1_2)
        );
        assert_eq!(with("MAX_TLS_PROTOCOL", "0").unwrap().max_version, None);
        assert!(with("MAX_TLS_PROTOCOL", "TLS1_VERSION_DEPRECATED").is_err());
        let conf = with("NAME_COMPATIBILITY", "STRICT_GT2").unwrap();
        assert_eq!(conf.name_compatibility, Some(NameCompatibility::StrictGt2));
        assert_eq!(
            with("CIPHERS", "AES256-GCM-SHA384").unwrap().ciphers.as_deref(),
            Some("AES256-GCM-SHA384")
        );
        assert_eq!(with("SERVER_CIPHER_ORDER", "no").unwrap().server_order, Some(false));
        assert_eq!(with("VHOST_CRED_OWNER", "globus").unwrap().vhost_cred_owner.as_deref(), Some("globus"));
        assert_eq!(with("BACKWARD_COMPATIBLE_MIC", "true").unwrap().compatible_mic, Some(true));
        assert_eq!(with("ACCEPT_BACKWARD_COMPATIBLE_MIC", "0").unwrap().accept_compatible_mic, Some(false));
        assert!(with("SERVER_CIPHER_ORDER", "perhaps").is_err());
    }
}
