//! The information of a listing about one name, local or remote.

use crate::{FailureKind, RemoteError};
use bstr::{BStr, BString, ByteSlice};
use ropewalk_protocol::client::answer;
use ropewalk_protocol::facts::{self, EntryKind};
use ropewalk_protocol::listing;
use ropewalk_protocol::reply::Reply;
use ropewalk_storage::{Kind, Metadata};

/// The error of [`Entry::leads_back`].
pub(crate) const LEADS_BACK: &str = "a symbolic link leads back to a directory above it";

/// The error of entries for which [`Entry::leads_nowhere`] is true, and the reason if
/// [`crate::SelectionOptions::skip_dangling`] skips them.
pub const DANGLING: &str = "a dangling symbolic link";

/// Permissions of symbolic links on Linux.
pub(crate) const OF_LINKS: u32 = 0o777;

/// A time: seconds since 1970, UTC, and nanoseconds beyond them.
pub(crate) type Time = (i64, u32);

/// One entry of a directory. Unreported values are `None`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Relative to the listed directory: a name, or (in a recursive walk) names joined with `/`.
    /// Raw bytes.
    pub name: BString,
    pub kind: Kind,
    /// Bytes.
    pub size: Option<u64>,
    /// Seconds since 1970, UTC.
    pub modified: Option<i64>,
    /// The fraction of that time in nanoseconds: 0 for files at servers, which report seconds.
    pub nanoseconds: u32,
    /// Permission bits, 0o7777.
    pub mode: Option<u32>,
    pub owner: Option<String>,
    pub group: Option<String>,
    /// The target of a symbolic link. The entry may be the link itself or, if the server follows
    /// links, its target.
    pub target: Option<BString>,
    /// Device and inode, if known: the same pair is the same file.
    pub identity: Option<(u64, u64)>,
    /// Why the server could not list its contents.
    pub error: Option<String>,
}

impl Entry {
    /// An entry with a name and a kind only.
    pub fn new(name: impl Into<BString>, kind: Kind) -> Self {
        Self {
            name: name.into(),
            kind,
            size: None,
            modified: None,
            nanoseconds: 0,
            mode: None,
            owner: None,
            group: None,
            target: None,
            identity: None,
            error: None,
        }
    }

    /// Distinguishes a file from another one with the same name, size and time in seconds; 0 if
    /// that is not possible. A device's number may change after a reboot.
    pub(crate) fn stamp(&self) -> u64 {
        match self.nanoseconds {
            0 => self.identity.map_or(0, |(_, inode)| inode),
            nanoseconds => nanoseconds.into(),
        }
    }

    pub fn is_directory(&self) -> bool {
        self.kind == Kind::Directory
    }

    /// Whether it is a symbolic link to a directory above it. Such a link is not followed:
    /// everything beneath it is found otherwise.
    pub fn leads_back(&self) -> bool {
        self.error.as_deref() == Some(LEADS_BACK)
    }

    /// Whether it is a dangling symbolic link that was to be followed.
    pub fn leads_nowhere(&self) -> bool {
        self.kind == Kind::Symlink && self.error.as_deref() == Some(DANGLING)
    }

    /// Whether an entry exists whose name a listing cannot represent; [`Entry::name`] is not its
    /// name.
    pub fn is_nameless(&self) -> bool {
        self.error.as_deref() == Some(facts::UNPRINTABLE_NAME)
    }

    /// Why the information is incomplete: the entry's error, unless it is only a dangling symbolic
    /// link.
    pub fn trouble(&self) -> Option<&str> {
        let dangling = self.kind == Kind::Symlink && self.error.as_deref() == Some(facts::INVALID_LINK);
        self.error.as_deref().filter(|_| !dangling)
    }

    /// The kind of failure of its [`trouble`](Self::trouble).
    pub fn trouble_kind(&self) -> Option<FailureKind> {
        let reason = self.trouble()?.to_owned();
        Some(RemoteError::Unlisted { path: self.name.clone(), reason }.kind())
    }

    pub(crate) fn local(name: impl Into<BString>, metadata: Metadata) -> Self {
        Self {
            size: Some(metadata.size),
            modified: Some(metadata.modified.0),
            nanoseconds: metadata.modified.1,
            mode: Some(metadata.mode),
            owner: Some(metadata.uid.to_string()),
            group: Some(metadata.gid.to_string()),
            target: metadata.target,
            identity: Some((metadata.device, metadata.inode)),
            ..Self::new(name, metadata.kind)
        }
    }
}

/// The contents of a line of a listing.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Line {
    /// `Box`: most lines are moved and then taken apart.
    Entry(Box<Entry>),
    /// The directory itself, its parent, or a total.
    Nothing,
    /// An unparsable line, which may be the only one about an entry.
    Unknown,
}

impl Line {
    fn of(entry: Entry) -> Self {
        let named = !matches!(entry.name.as_slice(), b"" | b"." | b"..");
        if named { Self::Entry(Box::new(entry)) } else { Self::Nothing }
    }
}

/// Parses a line of MLSD or MLSR.
pub(crate) fn from_facts(line: &BStr) -> Line {
    match facts::Entry::parse(line) {
        Ok(entry) if matches!(entry.kind, EntryKind::CurrentDirectory | EntryKind::ParentDirectory) => {
            Line::Nothing
        }
        Ok(entry) => Line::of(convert(entry)),
        Err(_) => Line::Unknown,
    }
}

/// Parses a reply to MLST.
pub(crate) fn from_status(reply: &Reply) -> Option<Entry> {
    answer::entry(reply).map(convert)
}

/// Parses a line of LIST in the format of Unix servers. Ignores the time, which has a resolution of
/// a minute or a day, and an unknown time zone.
pub(crate) fn from_long(line: &[u8]) -> Line {
    match listing::parse_long(line, None) {
        Some(entry) => Line::of(Entry { modified: None, ..convert(entry) }),
        None if is_total(line) => Line::Nothing,
        None => Line::Unknown,
    }
}

/// `total 12`, before the entries; in other languages another word, and perhaps a unit.
fn is_total(line: &[u8]) -> bool {
    let mut fields = line.fields();
    let (Some(_), Some(number), None) = (fields.next(), fields.next(), fields.next()) else { return false };
    number.first().is_some_and(u8::is_ascii_digit)
}

fn convert(entry: facts::Entry) -> Entry {
    let kind = match entry.kind {
        EntryKind::File => Kind::File,
        EntryKind::Directory | EntryKind::CurrentDirectory | EntryKind::ParentDirectory => Kind::Directory,
        EntryKind::Symlink => Kind::Symlink,
        EntryKind::BlockDevice => Kind::BlockDevice,
        EntryKind::CharacterDevice => Kind::CharacterDevice,
        EntryKind::Fifo => Kind::Fifo,
        EntryKind::Socket | EntryKind::Other => Kind::Socket,
    };
    let text = |name: Option<String>, number: Option<u32>| name.or_else(|| number.map(|n| n.to_string()));
    Entry {
        name: entry.name,
        kind,
        size: entry.size,
        modified: entry.modified,
        nanoseconds: 0,
        mode: entry.mode,
        owner: text(entry.owner, entry.uid),
        group: text(entry.group, entry.gid),
        target: entry.target,
        identity: entry.device.zip(entry.inode),
        error: entry.error,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn entry(line: Line) -> Entry {
        match line {
            Line::Entry(entry) => *entry,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn from_gct() {
        let line = "Type=file;Modify=20261121191739;Size=12;Perm=r;UNIX.mode=0644;UNIX.owner=root;UNIX.uid=0;\
                    UNIX.group=root;UNIX.gid=0;Unique=fe00-99c50d; small.txt";
        let told = entry(from_facts(line.into()));
        assert_eq!((told.name.as_slice(), told.size, told.mode), (&b"small.txt"[..], Some(12), Some(0o644)));
        assert_eq!(told.identity, Some((0xfe00, 0x99_c50d)));
        assert_eq!(from_facts("Type=cdir; .".into()), Line::Nothing);
        assert_eq!(from_facts("Type=file;Size=x; a".into()), Line::Unknown);
        assert_eq!(entry(from_facts("no facts".into())).size, None);
        let told = entry(from_facts("Type=file;Modify=1;Size=3;UNIX.uid=4294967296; a".into()));
        assert_eq!((told.size, told.modified, told.owner), (Some(3), None, None));
    }

    #[test]
    fn a_link_that_leads_nowhere_is_no_trouble() {
        let trouble =
            |line: &str| entry(from_facts(line.into())).trouble().map(std::borrow::ToOwned::to_owned);
        assert_eq!(trouble("Type=slink;UNIX.slink=nowhere;Error=InvalidLink; a"), None);
        assert_eq!(trouble("Type=slink;Error=OpenFailed; a").as_deref(), Some("OpenFailed"));
        assert_eq!(trouble("Type=dir;Error=InvalidLink; a").as_deref(), Some("InvalidLink"));
        assert_eq!(trouble("Type=dir; a"), None);
    }

    #[test]
    fn from_listings() {
        let e = entry(from_long(b"-rw-r--r--    1 0        0              12 Nov 21 19:17 a b"));
        assert_eq!((e.name.as_slice(), e.size, e.modified), (&b"a b"[..], Some(12), None));
        let e = entry(from_long(b"drwxrwxrwt   2 root  wheel  4096 Jan  1  2020  leading"));
        assert_eq!((e.name.as_slice(), e.kind, e.mode), (&b" leading"[..], Kind::Directory, Some(0o1777)));
        let e = entry(from_long(b"lrwxrwxrwx 1 u g 3 Dec 31 23:59 l -> a/b"));
        assert_eq!((e.name.as_slice(), e.target.unwrap().as_slice()), (&b"l"[..], &b"a/b"[..]));
        assert_eq!(from_long(b"total 12"), Line::Nothing);
    }
}
