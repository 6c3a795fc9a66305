//! The origin of a network path, as `--path` and `ropewalk reserve` name it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use ropewalk_paths::{Hook, HookManager, Id, Policy, Provider, Target, Tc};

use crate::output::say;

/// The origin of a path, as `--path` names it. Files and programs have absolute paths, so that a
/// later process can use the same text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PathSource {
    Hook(String),
    /// The file with the settings of the provider.
    #[cfg(feature = "nsi")]
    Nsi(PathBuf),
    /// The file with the settings of the proxy.
    #[cfg(feature = "nsi")]
    NsiRest(PathBuf),
    /// The file with the settings of the interface.
    Tc(PathBuf),
    Reserved(Id),
}

impl PathSource {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        const EXPECTED: &str =
            "expected hook:PROGRAM, hook:URL, nsi:FILE, nsi-rest:FILE, tc:FILE, reserved:ID or none";
        match text.split_once(':') {
            Some(("hook", target)) => Ok(Self::Hook(absolute_words(target)?)),
            #[cfg(feature = "nsi")]
            Some(("nsi", file)) if !file.is_empty() => Ok(Self::Nsi(absolute(Path::new(file)))),
            #[cfg(feature = "nsi")]
            Some(("nsi-rest", file)) if !file.is_empty() => Ok(Self::NsiRest(absolute(Path::new(file)))),
            #[cfg(not(feature = "nsi"))]
            Some(("nsi" | "nsi-rest", _)) => Err(format!(
                "{text:?}: this program was built without NSI: the feature `nsi` of the package ropewalk \
                 includes it, and is on by default"
            )),
            Some(("tc", file)) if !file.is_empty() => Ok(Self::Tc(absolute(Path::new(file)))),
            Some(("reserved", id)) => id.parse().map(Self::Reserved),
            _ => Err(format!("{text:?}: {EXPECTED}")),
        }
    }

    /// The provider; a reserved path has one already.
    ///
    /// # Errors
    /// The file of the provider is wrong.
    pub(crate) fn provider(&self) -> anyhow::Result<Option<Box<dyn Provider>>> {
        match self {
            Self::Hook(target) => {
                Ok(Some(Box::new(Hook::new(Target::parse(target).map_err(anyhow::Error::msg)?))))
            }
            #[cfg(feature = "nsi")]
            Self::Nsi(file) => {
                let nsi = ropewalk_nsi::Nsi::open(file);
                Ok(Some(Box::new(nsi.map_err(|error| crate::exit::usage(error.to_string()))?)))
            }
            #[cfg(feature = "nsi")]
            Self::NsiRest(file) => {
                let nsi = ropewalk_nsi::NsiRest::open(file);
                Ok(Some(Box::new(nsi.map_err(|error| crate::exit::usage(error.to_string()))?)))
            }
            Self::Tc(file) => {
                Ok(Some(Box::new(Tc::open(file).map_err(|error| crate::exit::usage(error.to_string()))?)))
            }
            Self::Reserved(_) => Ok(None),
        }
    }

    /// The reason for which the provider reserves no path in advance.
    pub(crate) fn without_schedule(&self) -> Option<&'static str> {
        match self {
            #[cfg(feature = "nsi")]
            Self::NsiRest(_) => Some(ropewalk_nsi::rest::NO_SCHEDULE),
            _ => None,
        }
    }

    /// Whether a copy that takes longer extends the time of its path.
    pub(crate) fn is_extended(&self) -> bool {
        match self {
            #[cfg(feature = "nsi")]
            Self::Nsi(_) => true,
            _ => false,
        }
    }

    /// The manager of data connections.
    pub(crate) fn manager(&self, policy: Policy) -> anyhow::Result<Option<HookManager>> {
        match self {
            Self::Hook(target) => {
                let target = Target::parse(target).map_err(anyhow::Error::msg)?;
                Ok(Some(HookManager::new(target, policy, report)))
            }
            #[cfg(feature = "nsi")]
            Self::Nsi(_) | Self::NsiRest(_) => Ok(None),
            Self::Tc(_) | Self::Reserved(_) => Ok(None),
        }
    }
}

impl fmt::Display for PathSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hook(target) => write!(f, "hook:{target}"),
            #[cfg(feature = "nsi")]
            Self::Nsi(file) => write!(f, "nsi:{}", file.display()),
            #[cfg(feature = "nsi")]
            Self::NsiRest(file) => write!(f, "nsi-rest:{}", file.display()),
            Self::Tc(file) => write!(f, "tc:{}", file.display()),
            Self::Reserved(id) => write!(f, "reserved:{id}"),
        }
    }
}

/// Makes a relative path of a program absolute. A name without a slash is searched in PATH.
fn absolute_words(text: &str) -> Result<String, String> {
    let Target::Program(mut words) = Target::parse(text)? else { return Ok(text.to_owned()) };
    if let Some(program) = words.first_mut().filter(|program| program.contains('/')) {
        *program = absolute(Path::new(&*program)).display().to_string();
    }
    Ok(Target::Program(words).into())
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// Reports the first failure of a hook: later connections have the same, as a rule.
fn report(why: &str) {
    static REPORTED: AtomicBool = AtomicBool::new(false);
    if !REPORTED.swap(true, Ordering::Relaxed) {
        say(format_args!("ropewalk: a data connection is made without its hook: {why}"));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::env;

    use super::*;

    #[test]
    fn path_source_is_read_and_shown_with_absolute_paths() {
        let here = env::current_dir().unwrap();
        let shown = |text: &str| PathSource::parse(text).map(|source| source.to_string());
        assert_eq!(shown("hook:true --x 'a b'").unwrap(), "hook:true --x 'a b'");
        assert_eq!(shown("hook:./h").unwrap(), format!("hook:{}/h", here.display()));
        assert_eq!(shown("hook:http://h/x").unwrap(), "hook:http://h/x");
        for text in ["", "hook", "hook:", "circuit:x", "reserved:7"] {
            assert!(shown(text).is_err(), "{text}");
        }
    }
}
