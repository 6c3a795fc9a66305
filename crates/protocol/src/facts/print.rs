//! Prints entries of MLST, MLSD and MLSR in the form of GCT.

use std::borrow::Cow;
use std::fmt::Write as _;

use bstr::BString;

use crate::date::Stamp;
use crate::facts::{Entry, EntryKind, Fact, FactSet};

impl Entry {
    /// Appends `Fact=value;... name` to `out`, without a leading space and without line end. The
    /// name is printed raw.
    pub fn print(&self, facts: FactSet, out: &mut Vec<u8>) {
        for fact in facts.iter() {
            if let Some(value) = self.value(fact) {
                append(out, fact.name(), &value);
            }
        }
        if let Some(error) = &self.error {
            append(out, "Error", &encode(error.as_bytes()));
        }
        out.push(b' ');
        out.extend_from_slice(&self.name);
    }

    /// Returns `None` if this entry does not have this fact.
    fn value(&self, fact: Fact) -> Option<Cow<'_, str>> {
        let value = match fact {
            Fact::Type => return Some(self.kind.type_value().into()),
            Fact::Charset => return Some("UTF-8".into()),
            Fact::Perm => return Some(self.permissions().into()),
            Fact::UnixOwner => return self.owner.as_ref().map(|o| encode(o.as_bytes())),
            Fact::UnixGroup => return self.group.as_ref().map(|g| encode(g.as_bytes())),
            Fact::UnixSlink => return self.target.as_ref().map(|t| encode(t)),
            Fact::Modify => Stamp(self.modified?).to_string(),
            Fact::Size => self.size?.to_string(),
            Fact::UnixMode => format!("{:04o}", self.mode? & 0o7777),
            Fact::UnixUid => self.uid?.to_string(),
            Fact::UnixGid => self.gid?.to_string(),
            Fact::Unique => format!("{:x}-{:x}", self.device?, self.inode?),
            Fact::Count if self.kind == EntryKind::CurrentDirectory => self.count?.to_string(),
            Fact::Count => return None,
        };
        Some(value.into())
    }

    /// Returns the letters in GCT's order. Types other than files and directories have none.
    fn permissions(&self) -> String {
        let letters: &[(bool, &str)] = if self.kind.is_directory() {
            &[
                (self.writable && self.searchable, "cfmp"),
                (self.searchable, "e"),
                (self.readable && self.searchable, "l"),
            ]
        } else if self.kind == EntryKind::File {
            &[(self.writable, "aw"), (self.readable, "r")]
        } else {
            &[]
        };
        letters.iter().filter(|(has, _)| *has).map(|(_, letters)| *letters).collect()
    }
}

impl EntryKind {
    fn type_value(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Directory => "dir",
            Self::CurrentDirectory => "cdir",
            Self::ParentDirectory => "pdir",
            Self::Symlink => "slink",
            Self::BlockDevice => "OS.unix=blk",
            Self::CharacterDevice => "OS.unix=chr",
            Self::Fifo => "OS.unix=pipe",
            Self::Socket | Self::Other => "OS.unix=other",
        }
    }
}

fn append(out: &mut Vec<u8>, name: &str, value: &str) {
    for part in [name, "=", value, ";"] {
        out.extend_from_slice(part.as_bytes());
    }
}

/// Encodes all bytes but graphic ASCII, and `%`, `=` and `;`, as `%XX`, as GCT does in values.
pub fn encode(value: &[u8]) -> Cow<'_, str> {
    let plain = |b: u8| b.is_ascii_graphic() && !matches!(b, b'%' | b'=' | b';');
    if let Ok(text) = str::from_utf8(value)
        && text.bytes().all(plain)
    {
        return text.into();
    }
    let mut text = String::with_capacity(value.len() + 16);
    for &b in value {
        if plain(b) {
            text.push(b.into());
        } else {
            let _ = write!(text, "%{b:02X}");
        }
    }
    text.into()
}

/// Reverses [`encode`]. A `%` without two hexadecimal digits is kept, because some servers do not
/// encode.
pub fn decode(value: &[u8]) -> BString {
    let digit = |at: usize| value.get(at).and_then(|b| char::from(*b).to_digit(16));
    let mut bytes = BString::default();
    let mut at = 0;
    while let Some(&b) = value.get(at) {
        if b == b'%'
            && let (Some(high), Some(low)) = (digit(at + 1), digit(at + 2))
        {
            bytes.push((high * 16 + low) as u8);
            at += 3;
        } else {
            bytes.push(b);
            at += 1;
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn print(entry: &Entry, facts: FactSet) -> BString {
        let mut out = Vec::new();
        entry.print(facts, &mut out);
        out.into()
    }

    /// This is a line of globus-gridftp-server 13.24.
    #[test]
    fn entry_of_file_is_printed_as_gct_does() {
        let entry = Entry {
            size: Some(12),
            modified: Some(1_795_288_659),
            mode: Some(0o100_644),
            uid: Some(0),
            gid: Some(0),
            owner: Some("root".into()),
            group: Some("root".into()),
            device: Some(0xfe00),
            inode: Some(0x99_c50d),
            links: Some(1),
            writable: false,
            ..Entry::new("small.txt", EntryKind::File)
        };
        assert_eq!(
            print(&entry, FactSet::default()),
            "Type=file;Modify=20261121191739;Size=12;Perm=r;UNIX.mode=0644;UNIX.owner=root;UNIX.uid=0;\
             UNIX.group=root;UNIX.gid=0;Unique=fe00-99c50d; small.txt"
        );
        let facts = FactSet::from_names(["Size", "Modify", "Type", "Charset"]);
        assert_eq!(print(&entry, facts), "Type=file;Modify=20261121191739;Charset=UTF-8;Size=12; small.txt");
        assert_eq!(print(&entry, FactSet::empty()), " small.txt");
    }

    #[test]
    fn entry_of_link_and_directory_is_printed() {
        let facts = FactSet::from_names(["Type", "Perm", "UNIX.slink", "X.count"]);
        let entry = Entry {
            target: Some("/d/sub dir;=%".into()),
            writable: false,
            count: Some(7),
            ..Entry::new("li nk", EntryKind::Directory)
        };
        assert_eq!(print(&entry, facts), "Type=dir;Perm=el;UNIX.slink=/d/sub%20dir%3B%3D%25; li nk");
        let entry = Entry { count: Some(9), ..Entry::new(".", EntryKind::CurrentDirectory) };
        assert_eq!(print(&entry, facts), "Type=cdir;Perm=cfmpel;X.count=9; .");
        let entry = Entry {
            target: Some("nowhere".into()),
            error: Some("InvalidLink".into()),
            ..Entry::new("d/\u{ff}", EntryKind::Symlink)
        };
        assert_eq!(print(&entry, facts), "Type=slink;Perm=;UNIX.slink=nowhere;Error=InvalidLink; d/\u{ff}");
        assert_eq!(print(&Entry::new("f", EntryKind::Fifo), facts), "Type=OS.unix=pipe;Perm=; f");
    }

    proptest! {
        #[test]
        fn encoded_value_is_decoded_back(value: Vec<u8>) {
            let text = encode(&value);
            prop_assert!(text.bytes().all(|b| b.is_ascii_graphic() && b != b';' && b != b'='));
            prop_assert_eq!(decode(text.as_bytes()), value);
        }
    }
}
