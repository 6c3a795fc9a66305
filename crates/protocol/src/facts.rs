//! Facts of files (MLST, MLSD, MLSR; RFC 3659 section 7), in the form that GCT prints.

mod parse;
mod print;

use bstr::BString;

use crate::listing::{has_line_end, on_one_line};

/// The type of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EntryKind {
    File,
    Directory,
    /// The directory that is being listed.
    CurrentDirectory,
    ParentDirectory,
    Symlink,
    BlockDevice,
    CharacterDevice,
    Fifo,
    Socket,
    /// Unknown, or of another type.
    Other,
}

impl EntryKind {
    /// Whether this is a directory of any of the three kinds.
    pub fn is_directory(self) -> bool {
        matches!(self, Self::Directory | Self::CurrentDirectory | Self::ParentDirectory)
    }
}

/// The [`Entry::error`] of an entry whose name contains CR or LF. The entry is listed under a
/// changed name; if a file of that name exists, it is another file.
pub const UNPRINTABLE_NAME: &str = "UnprintableName";

/// The [`Entry::error`] of a symbolic link whose target does not exist.
pub const INVALID_LINK: &str = "InvalidLink";

/// One entry of a listing. A fact that the peer did not send is `None`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The raw name in the listing: one component, or a path relative to the listed directory.
    pub name: BString,
    pub kind: EntryKind,
    /// Size in bytes.
    pub size: Option<u64>,
    /// Time of modification in seconds since 1970.
    pub modified: Option<i64>,
    /// Permission bits, 0o7777.
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub owner: Option<String>,
    pub group: Option<String>,
    pub device: Option<u64>,
    pub inode: Option<u64>,
    pub links: Option<u64>,
    /// The target of the symbolic link. If the server follows links, the entry describes the
    /// target, otherwise the link itself.
    pub target: Option<BString>,
    /// The user may read the file or list the directory.
    pub readable: bool,
    /// The user may write the file, or make and remove entries of the directory.
    pub writable: bool,
    /// The user may enter the directory.
    pub searchable: bool,
    /// Number of entries in the listed directory.
    pub count: Option<u64>,
    /// The reason for which a part of the tree is missing (`OpenFailed`, [`INVALID_LINK`],
    /// [`UNPRINTABLE_NAME`]).
    pub error: Option<String>,
}

impl Entry {
    /// Makes an entry with a name and a type only, and with all permissions.
    pub fn new(name: impl Into<BString>, kind: EntryKind) -> Self {
        Self {
            name: name.into(),
            kind,
            size: None,
            modified: None,
            mode: None,
            uid: None,
            gid: None,
            owner: None,
            group: None,
            device: None,
            inode: None,
            links: None,
            target: None,
            readable: true,
            writable: true,
            searchable: true,
            count: None,
            error: None,
        }
    }

    /// The entry in the form that MLSD, MLSR and MLSC send. A name with line ends is sent with `?`
    /// in place of CR and LF. No client can request the file by that name, so it is listed as
    /// neither file nor directory ([`EntryKind::Other`]), with [`UNPRINTABLE_NAME`]. If the entry
    /// were left out, the client would take the file for missing.
    #[must_use]
    pub fn shown(self) -> Self {
        if !has_line_end(&self.name) {
            return self;
        }
        Self {
            name: on_one_line(&self.name).into_owned().into(),
            kind: EntryKind::Other,
            target: None,
            error: Some(UNPRINTABLE_NAME.to_owned()),
            ..self
        }
    }
}

/// Facts that OPTS MLST can select, in the order in which they are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fact {
    Type,
    Modify,
    Charset,
    Size,
    Perm,
    UnixMode,
    UnixOwner,
    UnixUid,
    UnixGroup,
    UnixGid,
    Unique,
    UnixSlink,
    Count,
}

impl Fact {
    pub const ALL: [Self; 13] = [
        Self::Type,
        Self::Modify,
        Self::Charset,
        Self::Size,
        Self::Perm,
        Self::UnixMode,
        Self::UnixOwner,
        Self::UnixUid,
        Self::UnixGroup,
        Self::UnixGid,
        Self::Unique,
        Self::UnixSlink,
        Self::Count,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Type => "Type",
            Self::Modify => "Modify",
            Self::Charset => "Charset",
            Self::Size => "Size",
            Self::Perm => "Perm",
            Self::UnixMode => "UNIX.mode",
            Self::UnixOwner => "UNIX.owner",
            Self::UnixUid => "UNIX.uid",
            Self::UnixGroup => "UNIX.group",
            Self::UnixGid => "UNIX.gid",
            Self::Unique => "Unique",
            Self::UnixSlink => "UNIX.slink",
            Self::Count => "X.count",
        }
    }

    /// Returns the fact with this name, in any case.
    pub fn from_name(name: &[u8]) -> Option<Self> {
        Self::ALL.into_iter().find(|fact| fact.name().as_bytes().eq_ignore_ascii_case(name))
    }
}

/// The facts that a session prints. The default is all facts but `Charset`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FactSet(u16);

impl FactSet {
    pub const fn empty() -> Self {
        Self(0)
    }

    pub fn insert(&mut self, fact: Fact) {
        self.0 |= 1 << fact as u16;
    }

    pub fn remove(&mut self, fact: Fact) {
        self.0 &= !(1 << fact as u16);
    }

    pub fn contains(self, fact: Fact) -> bool {
        self.0 & 1 << fact as u16 != 0
    }

    /// Returns the facts that OPTS MLST selects. Unknown names are ignored, as RFC 3659 section 7.9
    /// requires.
    pub fn from_names<N: AsRef<[u8]>>(names: impl IntoIterator<Item = N>) -> Self {
        names.into_iter().filter_map(|name| Fact::from_name(name.as_ref())).collect()
    }

    pub fn iter(self) -> impl Iterator<Item = Fact> {
        Fact::ALL.into_iter().filter(move |fact| self.contains(*fact))
    }

    /// Returns the text after `MLST ` in FEAT: all facts, with a star after each selected fact. As
    /// in GCT, `X.count` never has a star.
    pub fn feature(self) -> String {
        use Fact::*;
        let order = [
            Type, Size, Modify, Perm, Charset, UnixMode, UnixOwner, UnixUid, UnixGroup, UnixGid, Unique,
            UnixSlink, Count,
        ];
        let star = |fact| if self.contains(fact) && fact != Count { "*;" } else { ";" };
        order.into_iter().flat_map(|fact| [fact.name(), star(fact)]).collect()
    }
}

impl Default for FactSet {
    fn default() -> Self {
        Fact::ALL.into_iter().filter(|fact| *fact != Fact::Charset).collect()
    }
}

impl FromIterator<Fact> for FactSet {
    fn from_iter<T: IntoIterator<Item = Fact>>(facts: T) -> Self {
        let mut set = Self::empty();
        for fact in facts {
            set.insert(fact);
        }
        set
    }
}

pub use parse::FactError;
pub use print::{decode, encode};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fact_set_feature_matches_gct() {
        assert_eq!(
            FactSet::default().feature(),
            "Type*;Size*;Modify*;Perm*;Charset;UNIX.mode*;UNIX.owner*;UNIX.uid*;UNIX.group*;UNIX.gid*;Unique*;\
             UNIX.slink*;X.count;"
        );
        assert!(FactSet::empty().feature().starts_with("Type;Size;Modify;"));
    }

    #[test]
    fn entry_with_line_end_in_name_is_shown_as_other() {
        let lines = Entry {
            size: Some(5),
            target: Some("x".into()),
            ..Entry::new("d/a\rb\n c", EntryKind::Directory)
        };
        let mut out = Vec::new();
        lines.shown().print(FactSet::default(), &mut out);
        assert_eq!(
            BString::from(&out[..]),
            "Type=OS.unix=other;Size=5;Perm=;Error=UnprintableName; d/a?b? c"
        );
        let parsed = Entry::parse(&out).ok();
        assert_eq!(
            parsed.map(|entry| (entry.kind, entry.error)),
            Some((EntryKind::Other, Some(UNPRINTABLE_NAME.to_owned())))
        );
        let usual = Entry::new("a?b", EntryKind::File);
        assert_eq!(usual.clone().shown(), usual);
    }

    #[test]
    fn fact_set_selects_only_known_names() {
        let set = FactSet::from_names(["SIZE", "type", "nonsense", ""]);
        assert_eq!(set.iter().collect::<Vec<_>>(), [Fact::Type, Fact::Size]);
        let mut set = FactSet::default();
        set.remove(Fact::Type);
        assert!(!set.contains(Fact::Type) && set.contains(Fact::Count));
        assert_eq!(FactSet::from_names::<&str>([]), FactSet::empty());
    }
}
