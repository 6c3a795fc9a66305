//! Settings to be written, and the access to the kernel's settings.

use std::io;

use serde::{Deserialize, Serialize};

use super::{Check, CheckState};
use crate::collect::facts::{Root, sysctl_path};

/// One setting with its old and its new value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Change {
    /// The name in the notation of sysctl(8): `net.ipv4.tcp_rmem`.
    pub name: String,
    pub before: String,
    pub after: String,
    /// The setting is only advised. If the kernel refuses it, the others are set nevertheless.
    #[serde(skip)]
    pub optional: bool,
}

/// An optional setting that the kernel refused. It still has its old value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    pub name: String,
    /// The value that the kernel refused.
    pub value: String,
    /// The kernel's error.
    pub why: String,
}

/// The result of applying changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// The changes with the values that the kernel made of them.
    pub changes: Vec<Change>,
    pub refused: Vec<Refused>,
}

/// The settings that a host lacks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes(pub Vec<Change>);

impl Changes {
    /// The changes that the checks propose.
    pub fn of(checks: &[Check]) -> Self {
        let change = |check: &Check| {
            let after = check.set.clone()?;
            let optional = check.state == CheckState::Advice;
            Some(Change { name: check.name.clone(), before: check.found.clone(), after, optional })
        };
        Self(checks.iter().filter_map(change).collect())
    }

    /// Separates the changes that can be written here from the others: a network namespace shows
    /// settings that only the host's own namespace can change.
    pub fn split(self, sysctls: &Sysctls) -> (Self, Vec<Change>) {
        let (mine, others): (Vec<_>, Vec<_>) =
            self.0.into_iter().partition(|change| sysctls.may_write(&change.name));
        (Self(mine), others)
    }

    /// A diff for people: two lines for each change.
    pub fn diff(&self) -> String {
        let lines = |change: &Change| {
            format!("- {} = {}\n+ {} = {}\n", change.name, change.before, change.name, change.after)
        };
        self.0.iter().map(lines).collect()
    }
}

/// Reads and writes settings: the kernel's, or a test's files.
#[derive(Clone, Debug, Default)]
pub struct Sysctls(Root);

impl Sysctls {
    /// Settings beneath `root`, which is laid out as `/`.
    pub fn at(root: Root) -> Self {
        Self(root)
    }

    /// The value of a setting, with its words separated by one space.
    ///
    /// # Errors
    /// There is no such setting here, or it may not be read.
    pub fn get(&self, name: &str) -> io::Result<String> {
        let text = self.0.read(&sysctl_path(checked(name)?))?;
        Ok(text.split_whitespace().collect::<Vec<_>>().join(" "))
    }

    /// Whether the setting can be written here.
    pub fn may_write(&self, name: &str) -> bool {
        let open = |name| std::fs::File::options().write(true).open(self.0.path(&sysctl_path(name)));
        checked(name).is_ok_and(|name| open(name).is_ok())
    }

    /// Classifies a change that could not be written. Returns it as refused if it is optional and
    /// still has its old value.
    pub(super) fn refused(&self, change: &Change, why: &io::Error) -> Option<Refused> {
        let left = change.optional && self.get(&change.name).is_ok_and(|now| now == change.before);
        left.then(|| Refused { name: change.name.clone(), value: change.after.clone(), why: why.to_string() })
    }

    /// Writes a setting and returns its value afterwards, which the kernel may have limited.
    ///
    /// # Errors
    /// There is no such setting here, it may not be written, or the kernel refuses the value.
    pub fn set(&self, name: &str, value: &str) -> io::Result<String> {
        use io::Write;
        let path = self.0.path(&sysctl_path(checked(name)?));
        // No file is created, and the whole value is written with one call, as the kernel requires.
        std::fs::File::options().write(true).truncate(true).open(path)?.write_all(value.as_bytes())?;
        self.get(name)
    }
}

/// Checks that a name is that of a network setting. Saved files are read by root, so no name in
/// them may lead anywhere else.
fn checked(name: &str) -> io::Result<&str> {
    let plain = |part: &str| {
        !part.is_empty()
            && part.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
    };
    let network = name.starts_with("net.") && name.split('.').all(plain);
    if network {
        Ok(name)
    } else {
        Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{name:?} is not a network setting (net.*)")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checked_when_name_is_no_network_setting_fails() {
        for name in ["net.ipv4.tcp_rmem", "net.core.rmem_max"] {
            assert!(checked(name).is_ok(), "{name}");
        }
        for name in
            ["kernel.core_pattern", "net/../kernel/core_pattern", "net...kernel", "net.ipv4/../x", "net.", ""]
        {
            assert!(checked(name).is_err(), "{name}");
        }
    }

    #[test]
    fn split_separates_changes_that_cannot_be_written() {
        let change =
            |name: &str| Change { name: name.into(), before: "1".into(), after: "2".into(), optional: false };
        // A setting that does not exist cannot be written.
        let changes = Changes(vec![change("net.core.no_such_setting"), change("kernel.hostname")]);
        let (mine, others) = changes.split(&Sysctls::default());
        assert_eq!((mine.0.len(), others.len()), (0, 2));
    }

    #[test]
    fn diff_shows_both_values() {
        let change = Change { name: "net.a".into(), before: "1".into(), after: "2".into(), optional: false };
        assert_eq!(Changes(vec![change]).diff(), "- net.a = 1\n+ net.a = 2\n");
    }
}
