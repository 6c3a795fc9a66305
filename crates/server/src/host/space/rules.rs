//! The quotas of the settings, and which accounts a file has by them.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use ropewalk_glob::{LONGEST_PATTERN, Pattern};
use ropewalk_space::{AccountKey, Limits};
use ropewalk_storage::Metadata;

use crate::config::Quota;

/// The extended attribute with the user's name, on files that belong to the server's own user.
pub(super) const OWNER_MARK: &str = "user.ropewalk.owner";
/// Longer names cannot log in.
const LONGEST_NAME: usize = 256;

pub(super) struct Rules {
    rules: Vec<Rule>,
    own_uid: u32,
    users: Mutex<HashMap<u32, String>>,
    groups: Mutex<HashMap<u32, String>>,
}

struct Rule {
    name: String,
    base: PathBuf,
    /// Each directory in `base` has its own account.
    each_directory: bool,
    users: Vec<Pattern>,
    groups: Vec<Pattern>,
    per_user: bool,
    limits: Limits,
}

/// The user and the group of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(super) user: String,
    pub(super) group: String,
}

impl Rules {
    /// # Errors
    /// A quota that makes no sense, with its name.
    pub(super) fn new(quotas: &[Quota]) -> Result<Self, String> {
        let mut rules: Vec<Rule> = Vec::new();
        for quota in quotas {
            let rule = Rule::new(quota).map_err(|error| format!("{}: {error}", quota.name))?;
            if rules.iter().any(|other| other.name == rule.name) {
                return Err(format!("{}: two quotas have this name", rule.name));
            }
            rules.push(rule);
        }
        let own_uid = rustix::process::geteuid().as_raw();
        Ok(Self { rules, own_uid, users: Mutex::default(), groups: Mutex::default() })
    }

    pub(super) fn limits(&self, quota: &str) -> Option<Limits> {
        self.rules.iter().find(|rule| rule.name == quota).map(|rule| rule.limits)
    }

    /// The directory with all files of an account.
    pub(super) fn directory_of(&self, account: &AccountKey) -> Option<PathBuf> {
        let rule = self.rules.iter().find(|rule| rule.name == account.quota)?;
        let own = account.holder.split('/').next().filter(|_| rule.each_directory);
        Some(own.map_or_else(|| rule.base.clone(), |own| rule.base.join(own)))
    }

    /// Whether a store with this root may contain files that count.
    pub(super) fn may_concern(&self, root: &Path) -> bool {
        self.rules.iter().any(|rule| rule.base.starts_with(root) || root.starts_with(&rule.base))
    }

    /// Whether files in a directory count.
    pub(super) fn concern(&self, directory: &Path) -> bool {
        self.rules.iter().any(|rule| rule.holder_of(directory).is_some())
    }

    /// Whether a directory may be renamed: its files have to stay in their accounts.
    pub(super) fn may_move(&self, from: &Path, to: &Path) -> bool {
        self.rules
            .iter()
            .all(|rule| !rule.base.starts_with(from) && rule.holder_of(from) == rule.holder_of(to))
    }

    /// Whether accounts depend on the owners of files.
    pub(super) fn need_owner(&self) -> bool {
        self.rules.iter().any(|rule| rule.per_user || !rule.users.is_empty() || !rule.groups.is_empty())
    }

    /// The directories with files that count, none within another.
    pub(super) fn bases(&self) -> Vec<&Path> {
        let mut bases: Vec<_> = self.rules.iter().map(|rule| rule.base.as_path()).collect();
        bases.sort_unstable();
        bases.dedup_by(|later, earlier| later.starts_with(earlier));
        bases
    }

    pub(super) fn accounts(&self, directory: &Path, owner: &Owner) -> Vec<(AccountKey, Limits)> {
        let account = |rule: &Rule| Some((rule.account(directory, owner)?, rule.limits));
        self.rules.iter().filter_map(account).collect()
    }

    /// The owner of the file `name` in `directory`.
    pub(super) fn owner(&self, directory: &Path, name: &[u8], metadata: &Metadata) -> Owner {
        if !self.need_owner() {
            return Owner::default();
        }
        // Other users could give their files to someone else by the mark.
        let marked = (metadata.uid == self.own_uid).then(|| mark(&directory.join(OsStr::from_bytes(name))));
        let by_number =
            || named(&self.users, metadata.uid, |uid| Some(uzers::get_user_by_uid(uid)?.name().into()));
        Owner { user: marked.flatten().unwrap_or_else(by_number), group: self.group(metadata.gid) }
    }

    /// The owner of files that a user creates.
    pub(super) fn owner_of_new(&self, user: &str, gid: u32) -> Owner {
        Owner { user: user.to_owned(), group: self.group(gid) }
    }

    fn group(&self, gid: u32) -> String {
        named(&self.groups, gid, |gid| Some(uzers::get_group_by_gid(gid)?.name().into()))
    }
}

impl Rule {
    fn new(quota: &Quota) -> Result<Self, String> {
        let valid =
            |name: &str| (1..=64).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_graphic());
        if !valid(&quota.name) {
            return Err("a name has 1 to 64 visible ASCII characters".into());
        }
        if [quota.bytes, quota.files, quota.soft_bytes, quota.soft_files].iter().all(Option::is_none) {
            return Err("it limits neither bytes nor files".into());
        }
        for (soft, hard) in [(quota.soft_bytes, quota.bytes), (quota.soft_files, quota.files)] {
            if let (Some(soft), Some(hard)) = (soft, hard)
                && soft > hard
            {
                return Err(format!("the soft limit {soft} is above the hard limit {hard}"));
            }
        }
        let each_directory = quota.tree.file_name() == Some(OsStr::new("*"));
        let base = if each_directory { quota.tree.parent().unwrap_or(&quota.tree) } else { &quota.tree };
        let base = base.canonicalize().map_err(|error| format!("{}: {error}", base.display()))?;
        if !base.is_dir() {
            return Err(format!("{} is no directory", base.display()));
        }
        Ok(Self {
            name: quota.name.clone(),
            base,
            each_directory,
            users: patterns(&quota.users)?,
            groups: patterns(&quota.groups)?,
            per_user: quota.per_user,
            limits: Limits {
                bytes: quota.bytes,
                files: quota.files,
                soft_bytes: quota.soft_bytes,
                soft_files: quota.soft_files,
                grace: quota.grace.as_secs(),
            },
        })
    }

    /// The directory that has the account of files in `directory`: itself or one above it, or an
    /// empty name if all have one. `None` if files there do not count.
    fn holder_of<'p>(&self, directory: &'p Path) -> Option<&'p OsStr> {
        let within = directory.strip_prefix(&self.base).ok()?;
        if self.each_directory { within.iter().next() } else { Some(OsStr::new("")) }
    }

    fn account(&self, directory: &Path, owner: &Owner) -> Option<AccountKey> {
        let place = self.holder_of(directory)?.to_string_lossy();
        let counts = |patterns: &[Pattern], name: &str| {
            patterns.is_empty() || patterns.iter().any(|pattern| pattern.matches(name.as_bytes()))
        };
        if !counts(&self.users, &owner.user) || !counts(&self.groups, &owner.group) {
            return None;
        }
        let holder = match (self.each_directory, self.per_user) {
            (true, true) => format!("{place}/{}", owner.user),
            (true, false) => place.into_owned(),
            (false, true) => owner.user.clone(),
            (false, false) => String::new(),
        };
        Some(AccountKey { quota: self.name.clone(), holder })
    }
}

fn patterns(texts: &[String]) -> Result<Vec<Pattern>, String> {
    let pattern = |text: &String| match text.len() {
        1..=LONGEST_PATTERN => Ok(Pattern::shell(text.as_bytes())),
        _ => Err(format!("{text:?} is no name")),
    };
    texts.iter().map(pattern).collect()
}

/// The user that is written down on a file.
fn mark(file: &Path) -> Option<String> {
    let mut name = [0; LONGEST_NAME];
    let length = rustix::fs::lgetxattr(file, OWNER_MARK, &mut name[..]).ok()?;
    String::from_utf8(name[..length].to_vec()).ok()
}

/// The name of a number, which is looked up once.
fn named(
    known: &Mutex<HashMap<u32, String>>,
    number: u32,
    look_up: impl Fn(u32) -> Option<std::ffi::OsString>,
) -> String {
    if let Some(name) = known.lock().get(&number) {
        return name.clone();
    }
    let name = look_up(number).map_or_else(|| number.to_string(), |name| name.to_string_lossy().into_owned());
    known.lock().insert(number, name.clone());
    name
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::config::Config;

    fn rules(text: &str) -> Result<Rules, String> {
        Rules::new(&Config::parse(text).unwrap().quota)
    }

    fn accounts(rules: &Rules, directory: &Path, user: &str) -> Vec<String> {
        let owner = Owner { user: user.into(), group: "staff".into() };
        let keys = rules.accounts(directory, &owner);
        keys.into_iter().map(|(key, _)| format!("{}:{}", key.quota, key.holder)).collect()
    }

    #[test]
    fn file_counts_in_accounts_of_its_directory_and_owner() {
        let scratch = tempfile::tempdir().unwrap();
        let root = scratch.path().canonicalize().unwrap();
        let text = format!(
            "[[quota]]\nname = \"all\"\ntree = {root:?}\nbytes = \"1M\"\n\
             [[quota]]\nname = \"home\"\ntree = {:?}\nfiles = 3\n\
             [[quota]]\nname = \"vo\"\ntree = {root:?}\nusers = [\"atlas*\"]\nbytes = 5\n\
             [[quota]]\nname = \"each\"\ntree = {root:?}\nper_user = true\ngroups = [\"staff\"]\nbytes = 5\n",
            root.join("*")
        );
        let rules = rules(&text).unwrap();
        assert_eq!(accounts(&rules, &root, "ann"), ["all:", "each:ann"]);
        assert_eq!(accounts(&rules, &root.join("x/y"), "atlas7"), ["all:", "home:x", "vo:", "each:atlas7"]);
        assert_eq!(accounts(&rules, Path::new("/other"), "ann"), [""; 0]);
        assert!(rules.concern(&root) && !rules.concern(Path::new("/other")));
        assert_eq!(rules.bases(), [root.as_path()]);
        assert!(rules.may_move(&root.join("x/a"), &root.join("x/b")));
        assert!(!rules.may_move(&root.join("x"), &root.join("y")));
        assert!(!rules.may_move(&root.join("x/a"), Path::new("/other/a")));
        assert!(!rules.may_move(root.parent().unwrap(), Path::new("/other")));
    }

    #[test]
    fn quota_that_makes_no_sense_is_refused() {
        let quota = |rest: &str| rules(&format!("[[quota]]\nname = \"q\"\n{rest}")).err().unwrap();
        assert!(quota("tree = \"/\"").contains("limits neither"));
        assert!(quota("tree = \"/nowhere\"\nbytes = 1").contains("/nowhere"));
        assert!(quota("tree = \"/\"\nbytes = 1\nsoft_bytes = 2").contains("above the hard limit"));
        assert!(quota("tree = \"/\"\nbytes = 1\nusers = [\"\"]").contains("no name"));
        let twice = "tree = \"/\"\nfiles = 1\n[[quota]]\nname = \"q\"\ntree = \"/\"\nfiles = 1";
        assert!(quota(twice).contains("two quotas"));
        assert!(rules("[[quota]]\nname = \"a b\"\ntree = \"/\"\nfiles = 1").is_err());
    }
}
