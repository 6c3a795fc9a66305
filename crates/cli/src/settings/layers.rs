//! The sources of settings: files, the environment, flags.

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use ropewalk_client::{Authentication, Fairness};

use super::{Flags, SETTINGS, Setting, Settings};
use crate::exit::usage;
use crate::sites::Used;

pub(crate) const SYSTEM_FILE: &str = "/etc/ropewalk/config.toml";

/// The source of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    Default,
    File(PathBuf),
    Site(String),
    Variable(String),
    Flag,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(path) => path.display().fmt(f),
            Self::Site(name) => write!(f, "site {name}"),
            Self::Variable(name) => write!(f, "environment variable {name}"),
            Self::Flag => f.write_str("flag"),
        }
    }
}

/// The values that were set, each from its strongest source.
#[derive(Clone, Debug, Default)]
pub struct Layers {
    values: BTreeMap<&'static str, Value>,
    /// Number of sources read.
    sources: usize,
}

#[derive(Clone, Debug)]
struct Value {
    text: String,
    origin: Origin,
    /// Number of its source: later ones override earlier ones.
    source: usize,
}

/// The two settings exclude each other: a polite transfer claims no share.
const POLITE: &str = "polite";
const SHARE: &str = "share";

impl Layers {
    /// Reads the files and the environment of this process, then applies `flags` over them.
    pub(crate) fn load(flags: &Flags) -> anyhow::Result<Self> {
        Self::load_at(flags, &Used::default())
    }

    /// The same for a command that names these sites: the settings of a site override those of the
    /// files for all servers.
    ///
    /// # Errors
    /// A file, a variable or a site is invalid; the error names it.
    pub fn load_at(flags: &Flags, sites: &Used) -> anyhow::Result<Self> {
        let mut layers = Self::default();
        layers.add_file(Path::new(SYSTEM_FILE))?;
        if let Some(path) = user_file(|name| env::var_os(name)) {
            layers.add_file(&path)?;
        }
        layers.sources += 1;
        for (key, text, site) in sites.settings()? {
            layers.set(key, text.to_owned(), Origin::Site(site.to_owned()));
        }
        layers.add_environment(|name| env::var_os(name))?;
        layers.add_flags(flags);
        Ok(layers)
    }

    /// The origin of the effective value.
    pub(crate) fn origin(&self, setting: &Setting) -> Origin {
        match self.values.get(setting.key) {
            Some(value) if self.overruled() != Some(setting.key) => value.origin.clone(),
            _ => Origin::Default,
        }
    }

    /// Returns the values of all settings.
    ///
    /// # Errors
    /// A value is invalid; the error names its origin.
    pub fn settings(&self) -> anyhow::Result<Settings> {
        let (mut settings, overruled) = (Settings::default(), self.overruled());
        for setting in SETTINGS {
            let Some(Value { text, origin, .. }) = self.values.get(setting.key) else { continue };
            settings.password_files.in_command |=
                *origin == Origin::Flag && setting.key.ends_with("password-file");
            let taken = if overruled == Some(setting.key) {
                setting.check(text)
            } else {
                (setting.apply)(&mut settings, text)
            };
            taken.map_err(|problem| usage(format!("{origin}: {}: {problem}", setting.key)))?;
        }
        settings.options.data.scitag = settings.scitag.tag().map_err(|problem| {
            let origin = Setting::find("scitag").map_or(Origin::Default, |setting| self.origin(setting));
            usage(format!("{origin}: scitag: {problem}"))
        })?;
        if settings.options.login.insecure && settings.options.login.authentication != Authentication::Auto {
            return Err(usage(
                "--auth requires a protected log-in, and --insecure an unprotected one: omit one of \
                 them (`--auth auto`)",
            ));
        }
        Ok(settings)
    }

    /// If both `polite` and `share` are set, the key of the weaker source. Within one source, for
    /// example the output of `config show`, `polite` is effective.
    fn overruled(&self) -> Option<&'static str> {
        let (polite, share) = (self.values.get(POLITE)?, self.values.get(SHARE)?);
        let mut asked = Settings::default();
        (Setting::find(POLITE)?.apply)(&mut asked, &polite.text).ok()?;
        if asked.options.tuning.fairness != Fairness::Polite {
            return None;
        }
        Some(if share.source > polite.source { POLITE } else { SHARE })
    }

    fn set(&mut self, key: &'static str, text: String, origin: Origin) {
        self.values.insert(key, Value { text, origin, source: self.sources });
    }

    fn add_flags(&mut self, flags: &Flags) {
        self.sources += 1;
        for (key, value) in &flags.0 {
            self.set(key, value.clone(), Origin::Flag);
        }
    }

    fn add_file(&mut self, path: &Path) -> anyhow::Result<()> {
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Ok(());
            }
            Err(error) => return Err(usage(format!("cannot read {}: {error}", path.display()))),
        };
        self.add_toml(path, &text)
    }

    fn add_toml(&mut self, path: &Path, text: &str) -> anyhow::Result<()> {
        self.sources += 1;
        let table: toml::Table =
            text.parse().map_err(|error| usage(format!("{}: {error}", path.display())))?;
        // Sites are read when one is named.
        for (key, value) in table.iter().filter(|(key, _)| *key != "sites") {
            let setting = Setting::find(key).ok_or_else(|| {
                usage(format!(
                    "{}: unknown setting {key:?}; `ropewalk config show` lists all",
                    path.display()
                ))
            })?;
            let value =
                text_of(value).map_err(|problem| usage(format!("{}: {key}: {problem}", path.display())))?;
            setting
                .check(&value)
                .map_err(|problem| usage(format!("{}: {key}: {problem}", path.display())))?;
            self.set(setting.key, value, Origin::File(path.to_owned()));
        }
        Ok(())
    }

    fn add_environment(&mut self, variable: impl Fn(&str) -> Option<OsString>) -> anyhow::Result<()> {
        self.sources += 1;
        for setting in SETTINGS {
            let name = setting.variable();
            let Some(value) = variable(&name) else { continue };
            let value = value
                .into_string()
                .map_err(|_| usage(format!("environment variable {name} is not valid UTF-8")))?;
            // An empty variable counts as unset, because some scripts cannot unset one.
            if !value.is_empty() {
                self.set(setting.key, value, Origin::Variable(name));
            }
        }
        // A variable of GCT's programs.
        const RANGE: &str = "GLOBUS_TCP_PORT_RANGE";
        let range =
            variable(RANGE).and_then(|range| range.into_string().ok()).filter(|range| !range.is_empty());
        if let Some(range) = range
            && variable("ROPEWALK_DATA_PORTS").is_none_or(|own| own.is_empty())
        {
            let range = range.split_whitespace().collect::<Vec<_>>().join(",");
            self.set("data-ports", range, Origin::Variable(RANGE.to_owned()));
        }
        Ok(())
    }
}

/// Converts a value of a configuration file to the text that a flag would have.
pub(crate) fn text_of(value: &toml::Value) -> Result<String, String> {
    match value {
        toml::Value::String(text) => Ok(text.clone()),
        toml::Value::Integer(number) => Ok(number.to_string()),
        toml::Value::Boolean(on) => Ok(on.to_string()),
        toml::Value::Array(items) => {
            items.iter().map(text_of).collect::<Result<Vec<_>, _>>().map(|v| v.join(","))
        }
        other => Err(format!("a {} is not a value of a setting", other.type_str())),
    }
}

/// `$XDG_CONFIG_HOME/ropewalk/config.toml`, or the same beneath `~/.config`.
pub(crate) fn user_file(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    // The XDG specification says that relative paths are ignored.
    let absolute = |name| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = absolute("XDG_CONFIG_HOME").or_else(|| Some(absolute("HOME")?.join(".config")))?;
    Some(base.join("ropewalk/config.toml"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use ropewalk_client::Auto;

    use super::*;

    #[test]
    fn stronger_source_overrides_weaker_ones() {
        let mut layers = Layers::default();
        layers
            .add_toml(
                Path::new("/s.toml"),
                "streams = 2\nfiles = 3\npreserve = [\"times\", \"links\"]\nresume = false",
            )
            .unwrap();
        layers.add_toml(Path::new("/u.toml"), "streams = \"auto\"\npipeline = 7").unwrap();
        layers.add_environment(|name| (name == "ROPEWALK_PIPELINE").then(|| "9".into())).unwrap();
        let options = layers.settings().unwrap().options;
        assert_eq!(options.tuning.streams, Auto::Auto);
        assert_eq!(options.tuning.files, Auto::Set(3));
        assert_eq!(options.tuning.pipeline, Auto::Set(9));
        assert!(
            options.preserve.times
                && options.preserve.links
                && !options.preserve.modes
                && !options.recovery.resume
        );
        let origin = |key| layers.origin(Setting::find(key).unwrap()).to_string();
        assert_eq!(origin("streams"), "/u.toml");
        assert_eq!(origin("files"), "/s.toml");
        assert_eq!(origin("pipeline"), "environment variable ROPEWALK_PIPELINE");
        assert_eq!(origin("mode"), "default");
    }

    #[test]
    fn stronger_of_polite_and_share_is_effective() {
        let share = Fairness::Share(0.5);
        for (system, user, variable, flag, expected, strongest) in [
            ("", "share = 50", None, Some(("polite", "true")), Fairness::Polite, Some("flag")),
            ("", "share = 50", Some(("ROPEWALK_POLITE", "yes")), None, Fairness::Polite, None),
            ("share = 50", "polite = true", None, None, Fairness::Polite, Some("/u.toml")),
            ("polite = true", "share = 50", None, None, share, Some("/u.toml")),
            ("", "polite = true", Some(("ROPEWALK_SHARE", "50%")), None, share, None),
            ("", "polite = true", None, Some(("share", "50")), share, Some("flag")),
            ("", "polite = true\nshare = 50", None, None, Fairness::Polite, Some("/u.toml")),
            ("", "polite = true\nshare = 50", None, Some(("polite", "false")), share, None),
            ("", "polite = false", None, Some(("share", "50")), share, None),
        ] {
            let mut layers = Layers::default();
            layers.add_toml(Path::new("/s.toml"), system).unwrap();
            layers.add_toml(Path::new("/u.toml"), user).unwrap();
            layers
                .add_environment(|name| variable.filter(|(known, _)| *known == name).map(|(_, v)| v.into()))
                .unwrap();
            layers.add_flags(&Flags(flag.map(|(key, value)| (key, value.into())).into_iter().collect()));
            let settings = layers.settings().unwrap();
            assert_eq!(settings.options.tuning.fairness, expected, "{system} {user} {variable:?} {flag:?}");
            // The output of `config show` is a file with the same meaning.
            let mut shown = String::new();
            for key in [POLITE, SHARE] {
                let setting = Setting::find(key).unwrap();
                shown += &format!("{key} = \"{}\"\n", (setting.show)(&settings));
            }
            let mut again = Layers::default();
            again.add_toml(Path::new("/u.toml"), &shown).unwrap();
            assert_eq!(again.settings().unwrap().options.tuning.fairness, expected, "{shown}");
            // The other setting is treated as unset.
            if let Some(strongest) = strongest {
                let (counts, other) = if expected == share { (SHARE, POLITE) } else { (POLITE, SHARE) };
                let origin = |key| layers.origin(Setting::find(key).unwrap()).to_string();
                assert_eq!((origin(counts).as_str(), origin(other).as_str()), (strongest, "default"));
            }
        }
        // An overridden value must still be valid.
        let mut layers = Layers::default();
        layers.add_environment(|name| (name == "ROPEWALK_SHARE").then(|| "much".into())).unwrap();
        layers.add_flags(&Flags(vec![("polite", "true".into())]));
        assert!(layers.settings().unwrap_err().to_string().contains("ROPEWALK_SHARE"));
    }

    #[test]
    fn port_range_variable_of_gct_is_read() {
        for range in ["50000,50010", "50000 50010"] {
            let mut layers = Layers::default();
            layers.add_environment(|name| (name == "GLOBUS_TCP_PORT_RANGE").then(|| range.into())).unwrap();
            assert_eq!(layers.settings().unwrap().options.data.ports, Some((50_000, 50_010)));
        }
    }

    #[test]
    fn invalid_value_is_reported_with_file_and_key() {
        let error = |text| Layers::default().add_toml(Path::new("/u.toml"), text).unwrap_err().to_string();
        assert!(error("stream = 2").contains("/u.toml: unknown setting \"stream\""));
        assert!(error("streams = 0").contains("/u.toml: streams:"));
        assert!(error("streams = 1.5").contains("float"));
        assert!(error("streams = ").starts_with("/u.toml: "));
        let mut layers = Layers::default();
        layers.add_environment(|name| (name == "ROPEWALK_FILES").then(|| "x".into())).unwrap();
        assert!(layers.settings().unwrap_err().to_string().contains("ROPEWALK_FILES"));
    }

    #[test]
    fn user_file_follows_the_xdg_directories() {
        let with = |pairs: &'static [(&str, &str)]| {
            user_file(|name| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into()))
        };
        assert_eq!(with(&[("HOME", "/h")]), Some("/h/.config/ropewalk/config.toml".into()));
        assert_eq!(
            with(&[("HOME", "/h"), ("XDG_CONFIG_HOME", "/x")]),
            Some("/x/ropewalk/config.toml".into())
        );
        assert_eq!(with(&[("XDG_CONFIG_HOME", "x")]), None);
    }
}
