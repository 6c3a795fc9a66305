//! Parses entries of MLST, MLSD and MLSR (RFC 3659 section 7.2).

use bstr::{BStr, BString, ByteSlice};

use crate::command::arguments::{number, number32};
use crate::date;
use crate::facts::{Entry, EntryKind, decode};

/// The line is not an entry of MLST, MLSD or MLSR.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FactError {
    #[error("no space between facts and name in {line:?}")]
    NoName { line: BString },
    #[error("the fact Size has the value {0:?}, expected a number below 2^64")]
    BadSize(BString),
}

impl Entry {
    /// Parses `Fact=value;... name`, without line end (RFC 3659 section 7.2). Fact names are
    /// accepted in any case. Unknown facts are ignored, and a known fact with an invalid value is
    /// treated as absent. The facts end at the first semicolon that is followed by a space, so that
    /// values with spaces (`UNIX.groupname=domain users`) do not become part of the name. Without
    /// such a semicolon they end at the first space. The rest of the line is the name.
    ///
    /// # Errors
    /// The line has no name, or its size is not a number. A size cannot be treated as absent or
    /// guessed, because then a client would copy less or more than the file has.
    pub fn parse(line: &[u8]) -> Result<Self, FactError> {
        let end = match line.first() {
            Some(b' ') => Some(0),
            _ => line.find("; ").map(|at| at + 1).or_else(|| line.find_byte(b' ')),
        };
        let at = end.filter(|at| at + 1 < line.len());
        let at = at.ok_or_else(|| FactError::NoName { line: line.into() })?;
        // An entry without a type is probably a file.
        let mut entry = Self::new(&line[at + 1..], EntryKind::File);
        for fact in line[..at].split_str(";") {
            if let Some((name, value)) = fact.split_once_str("=") {
                entry.set(name, value.as_bstr())?;
            }
        }
        Ok(entry)
    }

    fn set(&mut self, name: &[u8], value: &BStr) -> Result<(), FactError> {
        let text = || Some(decode(value).to_str_lossy().into_owned());
        match name.to_ascii_lowercase().as_slice() {
            b"type" => self.set_type(value),
            b"size" | b"sizd" => {
                let size = number(value).ok_or_else(|| FactError::BadSize(value.into()))?;
                self.size = Some(size);
            }
            b"modify" => self.modified = date::parse(value).ok(),
            b"perm" => self.set_permissions(value),
            b"unix.mode" => {
                let bits = value.to_str().ok().and_then(|v| u32::from_str_radix(v, 8).ok());
                self.mode = bits.map(|bits| bits & 0o7777);
            }
            b"unix.owner" | b"unix.ownername" => self.owner = text(),
            b"unix.group" | b"unix.groupname" => self.group = text(),
            b"unix.uid" => self.uid = number32(value),
            b"unix.gid" => self.gid = number32(value),
            b"unique" => self.set_unique(value),
            b"unix.slink" => self.target = Some(decode(value)),
            b"x.count" => self.count = number(value),
            b"error" => self.error = text(),
            _ => {}
        }
        Ok(())
    }

    fn set_type(&mut self, value: &BStr) {
        // Some servers write the target of a link after a colon (RFC 3659 section 7.7.4).
        let (kind, target) = match value.split_once_str(":") {
            Some((kind, target)) => (kind, Some(target)),
            None => (value.as_bytes(), None),
        };
        self.kind = match kind.to_ascii_lowercase().as_slice() {
            b"file" => EntryKind::File,
            b"dir" => EntryKind::Directory,
            b"cdir" => EntryKind::CurrentDirectory,
            b"pdir" => EntryKind::ParentDirectory,
            b"slink" | b"os.unix=slink" | b"os.unix=symlink" => EntryKind::Symlink,
            b"os.unix=pipe" | b"os.unix=fifo" => EntryKind::Fifo,
            b"os.unix=socket" | b"os.unix=sock" => EntryKind::Socket,
            b"os.unix=reg" => EntryKind::File,
            other if other.starts_with(b"os.unix=chr") => EntryKind::CharacterDevice,
            other if other.starts_with(b"os.unix=blk") => EntryKind::BlockDevice,
            // Servers use this type for sockets; Ropewalk also uses it for entries whose names it
            // cannot print.
            b"os.unix=other" => EntryKind::Other,
            // The type is unknown. Treat it as a file: an attempt to read it will show whether it
            // is one.
            _ => EntryKind::File,
        };
        if self.kind == EntryKind::Symlink
            && let Some(target) = target.filter(|t| !t.is_empty())
        {
            self.target = Some(decode(target));
        }
    }

    /// `Type` may come after `Perm`, so the letters of both types are accepted: they do not
    /// collide.
    fn set_permissions(&mut self, value: &BStr) {
        let has = |letters: &[u8]| value.iter().any(|b| letters.contains(&b.to_ascii_lowercase()));
        self.readable = has(b"rl");
        self.writable = has(b"wacmp");
        self.searchable = has(b"e");
    }

    /// Opaque by RFC 3659. If it consists of two hexadecimal numbers, they are device and inode
    /// (GCT separates them with `-`, other servers with `g` or `u`).
    fn set_unique(&mut self, value: &BStr) {
        let hex = |digits: &[u8]| u64::from_str_radix(digits.to_str().ok()?, 16).ok();
        let parts = value.find_byteset("-gGuU").map(|at| (hex(&value[..at]), hex(&value[at + 1..])));
        if let Some((Some(device), Some(inode))) = parts {
            (self.device, self.inode) = (Some(device), Some(inode));
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;
    use crate::facts::FactSet;

    #[test]
    fn entry_line_of_gct_is_parsed() {
        let line =
            b"Type=file;Modify=20261121191739;Size=12;Perm=r;UNIX.mode=0644;UNIX.owner=root;UNIX.uid=0;\
            UNIX.group=root;UNIX.gid=0;Unique=fe00-99c50d; a b;c=d%.txt";
        let entry = Entry::parse(line).unwrap();
        assert_eq!(entry.name, "a b;c=d%.txt");
        assert_eq!(entry.kind, EntryKind::File);
        assert_eq!((entry.size, entry.modified, entry.mode), (Some(12), Some(1_795_288_659), Some(0o644)));
        assert_eq!((entry.device, entry.inode), (Some(0xfe00), Some(0x99_c50d)));
        assert!(entry.readable && !entry.writable && !entry.searchable);
        assert_eq!(entry.owner.as_deref(), Some("root"));
    }

    #[test]
    fn entry_lines_of_other_servers_are_parsed() {
        let entry = Entry::parse(
            b"modify=20010203040506.5;perm=flcdmpe;type=dir;unique=FD01U1A;UNIX.group=0;x.y=z; \xff\xfe x",
        )
        .unwrap();
        assert_eq!((entry.kind, entry.name.as_slice()), (EntryKind::Directory, &b"\xff\xfe x"[..]));
        assert_eq!((entry.device, entry.inode), (Some(0xfd01), Some(0x1a)));
        assert!(entry.readable && entry.writable && entry.searchable);
        let entry = Entry::parse(b"type=OS.unix=slink:/a%20b; l").unwrap();
        assert_eq!((entry.kind, entry.target.unwrap()), (EntryKind::Symlink, "/a b".into()));
        let entry =
            Entry::parse(b"Type=OS.unix=chr-1/3;UNIX.uid=root;Unique=keVO1+4G4;  two spaces ").unwrap();
        assert_eq!((entry.kind, entry.uid, entry.device), (EntryKind::CharacterDevice, None, None));
        assert_eq!(entry.name, " two spaces ");
        assert_eq!(Entry::parse(b" only a name").unwrap().name, "only a name");
        assert_eq!(Entry::parse(b"Size=1 x").unwrap().size, Some(1));
    }

    #[test]
    fn entry_with_spaces_in_values_keeps_its_name() {
        let entry = Entry::parse(
            b"type=file;size=3;UNIX.group=513;UNIX.groupname=domain users;UNIX.mode=0644;UNIX.ownername=bob lee; a; b c",
        )
        .unwrap();
        assert_eq!((entry.name.as_slice(), entry.size, entry.mode), (&b"a; b c"[..], Some(3), Some(0o644)));
        assert_eq!((entry.group.as_deref(), entry.owner.as_deref()), (Some("domain users"), Some("bob lee")));
        assert_eq!(Entry::parse(b" a; b").unwrap().name, "a; b");
        assert_eq!(Entry::parse(b"type=file;x=y z; ; ").unwrap().name, "; ");
    }

    #[test]
    fn entry_without_name_or_with_bad_size_fails() {
        assert!(matches!(Entry::parse(b"Type=file;"), Err(FactError::NoName { .. })));
        assert!(matches!(Entry::parse(b"Type=file; "), Err(FactError::NoName { .. })));
        assert!(matches!(Entry::parse(b""), Err(FactError::NoName { .. })));
        for line in [&b"Size=-1; x"[..], b"Size=; x", b"Size=18446744073709551616; x"] {
            assert!(matches!(Entry::parse(line), Err(FactError::BadSize(_))));
        }
    }

    #[test]
    fn entry_with_invalid_facts_leaves_them_out() {
        for line in [
            &b"Modify=2001;UNIX.mode=9;UNIX.uid=4294967296;UNIX.gid=4294967296;X.count=-1;Type=dir;Size=7; x"[..],
            b"Modify=20011341000000;UNIX.mode=40000000000;UNIX.uid=;UNIX.gid=root;X.count=18446744073709551616;\
              Type=dir;Size=7; x",
            b"Modify=;UNIX.mode=;UNIX.uid=-2;UNIX.gid=0x1;X.count=;Type=dir;Size=7; x",
            b"Modify=now;UNIX.mode=rwx;UNIX.uid=\xff;UNIX.gid=\xff;X.count=\xff;Type=dir;Size=7; x",
        ] {
            let expected = Entry { size: Some(7), ..Entry::new("x", EntryKind::Directory) };
            assert_eq!(Entry::parse(line).unwrap(), expected);
        }
    }

    fn entries() -> impl Strategy<Value = Entry> {
        use EntryKind::*;
        let kinds =
            prop::sample::select(vec![File, Directory, CurrentDirectory, ParentDirectory, Symlink, Fifo]);
        let name = prop::collection::vec(any::<u8>(), 1..20);
        let target = prop::option::of(prop::collection::vec(any::<u8>(), 0..10));
        let numbers = any::<(Option<u64>, Option<u32>, Option<u32>, Option<(u64, u64)>)>();
        (name, kinds, numbers, target, any::<Option<String>>(), 0i64..200_000_000_000).prop_map(
            |(name, kind, (size, uid, gid, unique), target, owner, modified)| Entry {
                size,
                uid,
                gid,
                device: unique.map(|u| u.0),
                inode: unique.map(|u| u.1),
                target: target.map(Into::into),
                group: owner.clone(),
                owner,
                modified: Some(modified),
                mode: uid.map(|u| u & 0o7777),
                ..Entry::new(name, kind)
            },
        )
    }

    proptest! {
        #[test]
        fn entry_printed_is_parsed_back(entry in entries()) {
            let mut line = Vec::new();
            entry.print(FactSet::default(), &mut line);
            let parsed = Entry::parse(&line).unwrap();
            // Entries that are neither files nor directories have no letters for permissions.
            let parsed = Entry { readable: true, writable: true, searchable: true, ..parsed };
            prop_assert_eq!(parsed, entry);
        }

        #[test]
        fn entry_parse_on_any_input_does_not_panic(line: Vec<u8>) {
            let _ = Entry::parse(&line);
        }
    }
}
