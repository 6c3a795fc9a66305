//! The entries of one directory, for listings.

use bstr::BStr;
use ropewalk_glob::{LONGEST_PATTERN, Pattern, is_glob};
use ropewalk_protocol::facts::{Entry, EntryKind};
use ropewalk_protocol::path::VirtualPath;
use ropewalk_protocol::server::{Failure, ListForm};
use ropewalk_security::Access;
use ropewalk_storage::{Error, ErrorKind, Kind, Metadata, Result, is_temporary_name};

use super::entries;
use crate::accounts::login::Login;
use crate::failure::failure;
use crate::host::Host;

/// Takes entries one by one. An error ends the listing.
pub(super) type Sink<'a> = dyn FnMut(Entry) -> Result<()> + 'a;

/// Asked for every entry, also for those that are not shown, whether the client still wants the
/// listing.
pub(super) type StillWanted<'a> = &'a dyn Fn() -> bool;

/// The error that ends a listing which the client no longer wants.
pub(super) fn stopped(place: &VirtualPath) -> Error {
    Error::new(ErrorKind::Interrupted, "list", place.as_bytes())
}

/// Lists a path for LIST, NLST, MLSD and MLSC: the entries of a directory, the entries that match a
/// pattern, or a file.
pub(super) fn list(
    host: &Host,
    login: &Login,
    form: ListForm,
    path: &VirtualPath,
    still_wanted: StillWanted<'_>,
    sink: &mut Sink<'_>,
) -> std::result::Result<(), Failure> {
    let directory = Directory { host, login, form, still_wanted };
    let sink: &mut Sink<'_> = &mut |entry| match form {
        ListForm::Facts | ListForm::Recursive => sink(entry.shown()),
        ListForm::Long | ListForm::Names => sink(entry),
    };
    let found = login
        .existing(path, Access::List)
        .and_then(|place| login.store.stat(&place, true).map(|metadata| (place, metadata)).map_err(failure));
    match found {
        Ok((place, metadata)) if metadata.kind == Kind::Directory => {
            directory.all(path, &place, &metadata, sink)
        }
        Ok((place, metadata)) => {
            let name = path.file_name().unwrap_or_default().to_owned();
            sink(entries::entry(host, login, &place, name, &metadata)).map_err(failure)
        }
        Err(missing) => directory.matching(path, missing, sink),
    }
}

struct Directory<'a> {
    host: &'a Host,
    login: &'a Login,
    form: ListForm,
    still_wanted: StillWanted<'a>,
}

impl Directory<'_> {
    fn all(
        &self,
        path: &VirtualPath,
        place: &VirtualPath,
        metadata: &Metadata,
        sink: &mut Sink<'_>,
    ) -> std::result::Result<(), Failure> {
        match self.form {
            ListForm::Facts | ListForm::Recursive => {
                sink(self.special(place, ".", EntryKind::CurrentDirectory, metadata)).map_err(failure)?;
                if let Some(parent) = self.parent(path, place, metadata) {
                    sink(parent).map_err(failure)?;
                }
            }
            // Clients that fetch or remove everything that a directory lists would follow `.` and
            // `..`.
            ListForm::Names | ListForm::Long => {}
        }
        self.each(place, |_| true, sink)
    }

    /// Lists the entries that match a pattern in the last component; otherwise the path is just
    /// `missing`.
    fn matching(
        &self,
        path: &VirtualPath,
        missing: Failure,
        sink: &mut Sink<'_>,
    ) -> std::result::Result<(), Failure> {
        let (Some(parent), Some(pattern)) = (path.parent(), path.file_name()) else {
            return Err(missing);
        };
        if !matches!(self.form, ListForm::Long | ListForm::Names)
            || !is_glob(pattern)
            || pattern.len() > LONGEST_PATTERN
        {
            return Err(missing);
        }
        let place = self.login.existing(&parent, Access::List)?;
        let hidden = pattern.starts_with(b".");
        let mut some = false;
        let pattern = Pattern::shell(pattern);
        let matches = |name: &BStr| (hidden || !name.starts_with(b".")) && pattern.matches(name);
        self.each(&place, matches, &mut |entry| {
            some = true;
            sink(entry)
        })?;
        if some { Ok(()) } else { Err(missing) }
    }

    fn each(
        &self,
        place: &VirtualPath,
        wanted: impl Fn(&BStr) -> bool,
        sink: &mut Sink<'_>,
    ) -> std::result::Result<(), Failure> {
        let listed = self.login.store.list(place, &mut |name, metadata| {
            if !(self.still_wanted)() {
                return Err(stopped(place));
            }
            // Part files are not shown.
            if !wanted(name) || is_temporary_name(name) {
                return Ok(());
            }
            let Ok(child) = place.child(name) else {
                return Ok(());
            };
            if !self.login.shows(&child) {
                return Ok(());
            }
            sink(match self.form {
                ListForm::Facts | ListForm::Recursive => {
                    entries::followed(self.host, self.login, place, &child, name.to_owned(), &metadata)
                }
                ListForm::Long => entries::entry(self.host, self.login, &child, name.to_owned(), &metadata),
                // Only the name is shown.
                ListForm::Names => Entry::new(name, EntryKind::Other),
            })
        });
        listed.map_err(failure)
    }

    fn special(&self, place: &VirtualPath, name: &str, kind: EntryKind, metadata: &Metadata) -> Entry {
        let mut entry = entries::entry(self.host, self.login, place, name.into(), metadata);
        entry.kind = kind;
        entry
    }

    /// The entry `..`; in the root of the session it is the root itself.
    fn parent(&self, path: &VirtualPath, place: &VirtualPath, own: &Metadata) -> Option<Entry> {
        let Some(parent) = path.parent() else {
            return Some(self.special(place, "..", EntryKind::ParentDirectory, own));
        };
        let place = self.login.existing(&parent, Access::List).ok()?;
        let metadata = self.login.store.stat(&place, true).ok()?;
        Some(self.special(&place, "..", EntryKind::ParentDirectory, &metadata))
    }
}
