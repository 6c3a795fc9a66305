//! The password file: lines `user:$argon2id$...`, and comments that begin with `#`.
//!
//! A [`PasswordFile`] holds the content of the file as it was last read. Changes lock the
//! directory, read the file again and replace it, so that concurrent edits are not lost. The file
//! is refused if its mode lets unexpected users read or write it.

use std::fs::{File, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use argon2::password_hash::phc::PasswordHash;
use ropewalk_files::OnDisk;

use crate::Verifier;

/// Maximum size of a password file, in bytes.
const LONGEST: u64 = 64 << 20;
/// A hash without a known password, with the usual cost. [`PasswordFile::verify`] compares against
/// it if there is no other hash to compare with.
const NOBODY: &str =
    "$argon2id$v=19$m=19456,t=2,p=1$bm9ib2R5aXNoZXJl$JKyJ2CXmRq5aJfQkQ5wFZc8rwGqhPzEhSj9V1mJt2gE";

/// Users and their password hashes.
#[derive(Clone, Debug)]
pub struct PasswordFile {
    path: PathBuf,
    lines: Vec<Line>,
    stamp: Stamp,
}

#[derive(Clone, Debug)]
enum Line {
    User {
        name: String,
        hash: Box<PasswordHash>,
    },
    /// A comment or an empty line, kept unchanged.
    Other(String),
}

/// Attributes of a file that differ after the file was changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Stamp {
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

/// Why the password file cannot be used or changed.
#[derive(Debug, thiserror::Error)]
pub enum PasswordError {
    #[error("password file {path}: {source}")]
    Io { path: PathBuf, source: io::Error },
    #[error(
        "password file {path} has mode {mode:04o}: neither group nor others may write it, and others may not read it"
    )]
    Permissions { path: PathBuf, mode: u32 },
    #[error(
        "password file {path} has mode {mode:04o}: everybody in the group {group} can read it, which is not a group of this \
         process; `chmod 600 {path}`, or give it to the server's own group"
    )]
    Group { path: PathBuf, mode: u32, group: u32 },
    #[error("password file {path}, line {line}: expected \"user:$argon2id$...\": {problem}")]
    Line { path: PathBuf, line: usize, problem: String },
    #[error("{0:?} cannot be a user's name: expected letters, digits and . _ - @ +, not . or - first")]
    Name(String),
    #[error("an empty password is no password")]
    Empty,
    #[error("cannot compute a password hash: {0}")]
    Hash(argon2::password_hash::Error),
}

/// Whether a name may stand in the password file and in paths: letters, digits and `. _ - @ +`, but
/// not `.` or `-` first; up to 255 bytes.
pub fn valid_user_name(name: &str) -> bool {
    let letter = |c: char| c.is_alphanumeric() || "._-@+".contains(c);
    !name.is_empty() && name.len() <= 255 && !name.starts_with(['.', '-']) && name.chars().all(letter)
}

impl PasswordFile {
    /// Reads the file.
    ///
    /// # Errors
    /// The file cannot be read, users other than its owner may write it, all users may read it, or
    /// a line is not valid. A file with group read permission is also refused unless it belongs to
    /// root or its group is one that a server runs in.
    pub fn load(path: impl Into<PathBuf>) -> Result<Self, PasswordError> {
        let mut passwords = Self { path: path.into(), lines: Vec::new(), stamp: Stamp::default() };
        passwords.read()?;
        Ok(passwords)
    }

    /// As [`PasswordFile::load`], but a missing file counts as empty; [`PasswordFile::set`] creates
    /// it.
    ///
    /// # Errors
    /// As [`PasswordFile::load`].
    pub fn load_or_new(path: impl Into<PathBuf>) -> Result<Self, PasswordError> {
        match Self::load(path) {
            Err(PasswordError::Io { path, source }) if source.kind() == io::ErrorKind::NotFound => {
                Ok(Self { path, lines: Vec::new(), stamp: Stamp::default() })
            }
            other => other,
        }
    }

    /// Whether the file has changed since it was read.
    ///
    /// # Errors
    /// The attributes of the file cannot be read.
    pub fn changed(&self) -> Result<bool, PasswordError> {
        let metadata = std::fs::metadata(&self.path).map_err(|e| self.io(e))?;
        Ok(Stamp::of(&metadata) != self.stamp)
    }

    /// Reads the file again.
    ///
    /// # Errors
    /// As [`PasswordFile::load`]; the previous content is kept.
    pub fn refresh(&mut self) -> Result<(), PasswordError> {
        self.read()
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The names of the users, in the order of the file.
    pub fn list(&self) -> impl Iterator<Item = &str> {
        self.users().map(|(name, _)| name)
    }

    /// Sets the password of a new or existing user, and writes the file.
    ///
    /// # Errors
    /// The name is not valid, the password is empty, or the file cannot be written.
    pub fn set(&mut self, user: &str, password: &[u8]) -> Result<(), PasswordError> {
        if !valid_user_name(user) {
            return Err(PasswordError::Name(user.to_owned()));
        }
        if password.is_empty() {
            return Err(PasswordError::Empty);
        }
        let text = Verifier::new(1).hash(password).map_err(PasswordError::Hash)?;
        let hash = PasswordHash::new(&text).map_err(|e| PasswordError::Hash(e.into()))?;
        self.edit(|lines| {
            let known = lines.iter_mut().find_map(|line| match line {
                Line::User { name, hash } if name == user => Some(hash),
                _ => None,
            });
            match known {
                Some(old) => **old = hash,
                None => lines.push(Line::User { name: user.to_owned(), hash: Box::new(hash) }),
            }
            true
        })?;
        Ok(())
    }

    /// Removes a user and writes the file. Returns false if there is no user of this name.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn remove(&mut self, user: &str) -> Result<bool, PasswordError> {
        self.edit(|lines| {
            let before = lines.len();
            lines.retain(|line| !matches!(line, Line::User { name, .. } if name == user));
            lines.len() < before
        })
    }

    /// Whether this is the user's password. The call takes equally long if there is no such user.
    pub fn verify(&self, user: &[u8], password: &[u8], verifier: &Verifier) -> bool {
        if let Some((_, hash)) = self.users().find(|(name, _)| name.as_bytes() == user) {
            return verifier.verify(password, hash);
        }
        // Use a hash with the cost of the file's own hashes, so that the time does not reveal
        // whether the user exists.
        let nobody = PasswordHash::new(NOBODY).ok();
        if let Some(hash) = self.users().next().map(|(_, hash)| hash).or(nobody.as_ref()) {
            verifier.verify(password, hash);
        }
        false
    }

    fn users(&self) -> impl Iterator<Item = (&str, &PasswordHash)> {
        self.lines.iter().filter_map(|line| match line {
            Line::User { name, hash } => Some((name.as_str(), &**hash)),
            Line::Other(_) => None,
        })
    }

    fn read(&mut self) -> Result<(), PasswordError> {
        let file = ropewalk_files::open(&self.path).map_err(|e| self.io(e))?;
        let metadata = file.metadata().map_err(|e| self.io(e))?;
        let mode = metadata.mode() & 0o7777;
        if mode & 0o026 != 0 {
            return Err(PasswordError::Permissions { path: self.path.clone(), mode });
        }
        if mode & 0o040 != 0 && !is_for_servers(&metadata) {
            let group = metadata.gid();
            return Err(PasswordError::Group { path: self.path.clone(), mode, group });
        }
        let text = ropewalk_files::content_text(&file, LONGEST).map_err(|e| self.io(e))?;
        let mut lines = Vec::new();
        for (number, line) in text.lines().enumerate() {
            lines.push(parse(line).map_err(|problem| PasswordError::Line {
                path: self.path.clone(),
                line: number + 1,
                problem,
            })?);
        }
        self.lines = lines;
        self.stamp = Stamp::of(&metadata);
        Ok(())
    }

    /// Applies a change to the file as it is now, not as it was last read: another process may have
    /// changed it since.
    fn edit(&mut self, change: impl FnOnce(&mut Vec<Line>) -> bool) -> Result<bool, PasswordError> {
        let directory = match self.path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
            _ => PathBuf::from("."),
        };
        let folder = File::open(&directory).map_err(|e| self.io(e))?;
        // Lock the directory, because the file itself is replaced.
        folder.lock().map_err(|e| self.io(e))?;
        match self.read() {
            Err(PasswordError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                self.lines.clear();
            }
            other => other?,
        }
        if !change(&mut self.lines) {
            return Ok(false);
        }
        self.replace().map_err(|e| self.io(e))?;
        self.stamp = Stamp::of(&std::fs::metadata(&self.path).map_err(|e| self.io(e))?);
        Ok(true)
    }

    fn replace(&self) -> io::Result<()> {
        let mut text = String::new();
        for line in &self.lines {
            match line {
                Line::User { name, hash } => text.push_str(&format!("{name}:{hash}\n")),
                Line::Other(line) => text.push_str(&format!("{line}\n")),
            }
        }
        let old = std::fs::metadata(&self.path).ok();
        // Replace the target of a symbolic link, not the link.
        let target = std::fs::canonicalize(&self.path).unwrap_or_else(|_| self.path.clone());
        ropewalk_files::replace_with(&target, 0o600, OnDisk::Now, |file| {
            if let Some(old) = old {
                // Keep owner and group: the server may run as the owner or in the group, while this
                // process runs as root.
                if std::os::unix::fs::fchown(&*file, Some(old.uid()), Some(old.gid())).is_ok() {
                    file.set_permissions(Permissions::from_mode(old.mode() & 0o7777))?;
                }
            }
            file.write_all(text.as_bytes())
        })
    }

    fn io(&self, source: io::Error) -> PasswordError {
        PasswordError::Io { path: self.path.clone(), source }
    }
}

impl Stamp {
    fn of(metadata: &std::fs::Metadata) -> Self {
        Self {
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

/// Whether the group that may read the file is one that the administrator meant to. The group of a
/// file of root says who else may read it (as for `/etc/shadow`). The file of another user must
/// belong to group 0 or to a group of this process. If this process runs as root, to set passwords
/// for a server, the owner's primary group is accepted too.
fn is_for_servers(metadata: &std::fs::Metadata) -> bool {
    let (owner, group) = (metadata.uid(), metadata.gid());
    let is = |gid: &rustix::fs::Gid| gid.as_raw() == group;
    owner == 0
        || group == 0
        || is(&rustix::process::getegid())
        || rustix::process::getgroups().unwrap_or_default().iter().any(is)
        || rustix::process::geteuid().is_root()
            && uzers::get_user_by_uid(owner).is_some_and(|owner| owner.primary_group_id() == group)
}

fn parse(line: &str) -> Result<Line, String> {
    if line.trim().is_empty() || line.starts_with('#') {
        return Ok(Line::Other(line.to_owned()));
    }
    // Error texts do not quote the line: it may be a password in the wrong place.
    let (name, hash) = line.split_once(':').ok_or("there is no colon")?;
    if !valid_user_name(name) {
        return Err("the name has characters that names do not have".into());
    }
    let hash = PasswordHash::new(hash.trim_end()).map_err(|e| format!("the hash is not understood: {e}"))?;
    if hash.algorithm.as_str() != "argon2id" || hash.salt.is_none() || hash.hash.is_none() {
        return Err(format!("the hash is {}, not a whole argon2id hash", hash.algorithm));
    }
    argon2::Params::try_from(&hash).map_err(|e| format!("the hash's parameters are out of bounds: {e}"))?;
    Ok(Line::User { name: name.to_owned(), hash: Box::new(hash) })
}
