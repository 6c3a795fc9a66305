//! Which paths a session may use. Rules are checked on a path as it is written, and again with its symbolic links
//! resolved, so that no link leads out of what is open; and once more by the store on what it really has opened, since
//! another session may have put a link in the place of a directory meanwhile.

use std::sync::Arc;

use bstr::ByteSlice as _;
use ropewalk_protocol::path::VirtualPath;
use ropewalk_protocol::server::Failure;
use ropewalk_security::Access;
use ropewalk_storage::{
    Error, ErrorKind, Guard, Kind, Metadata, Purpose, Store, is_temporary_name, journal_name,
    journal_of_part, part_name,
};
use rustix::io::Errno;

use crate::accounts::login::Login;
use crate::accounts::scope::Scope;
use crate::failure::failure;

impl Login {
    /// Changes what the session may use.
    pub(crate) fn set_scope(&mut self, scope: Scope) {
        self.scope = Arc::new(scope);
        self.store = guarded(&self.whole, &self.scope, Exempt::default());
    }

    /// The store for something new at `place`, which has been checked. The unfinished file of an upload stands beside it,
    /// under names that rules need not know.
    pub(crate) fn store_for(&self, place: &VirtualPath) -> Arc<dyn Store> {
        let mut also = vec![place.clone(), part_name(place), journal_name(place)];
        also.extend(journal_of_part(place));
        guarded(&self.whole, &self.scope, Exempt { also, unreplaced: self.unreplaced(place), hidden: false })
    }

    /// The place where it may be written, but nothing that is there already may be replaced.
    fn unreplaced(&self, place: &VirtualPath) -> Option<VirtualPath> {
        (!self.scope.replaces(place)).then(|| place.clone())
    }

    /// Fails where there is something at the place that may not be replaced. Unfinished uploads are gone on with.
    pub(crate) fn is_free(&self, place: &VirtualPath) -> Result<(), Failure> {
        if self.scope.replaces(place) || journal_of_part(place).is_some() {
            return Ok(());
        }
        match self.whole.stat(place, false) {
            Err(error) if error.is_not_found() => Ok(()),
            Err(error) => Err(failure(error)),
            Ok(_) => Err(Failure::Refused {
                code: 553,
                text: "There is a file of this name, and the bearer token does not permit to replace it \
                       (storage.modify)."
                    .into(),
            }),
        }
    }

    /// The store in which `from` may be renamed to `to`, both of them [renamable](Self::renamable) places, and whether that is so
    /// of files only: rules close what could be beneath a directory.
    pub(crate) fn store_to_rename(
        &self,
        from: &VirtualPath,
        to: &VirtualPath,
    ) -> Result<(Arc<dyn Store>, bool), Failure> {
        let scope = &self.scope;
        let mut hidden = !scope.allows_reading_tree(from);
        let tree = scope.may_rename(from) && scope.may_rename(to) && (!hidden || scope.hides_tree(to));
        if !tree {
            hidden = !scope.allows(from, Access::Read);
            if hidden && scope.allows(to, Access::Read) {
                return Err(Failure::NotAllowed);
            }
        }
        if !scope.replaces(from) && self.ends_by(from, to) {
            return Err(Failure::Refused {
                code: 553,
                text: "By that name the file could be replaced or removed, which the bearer token does not permit \
                       (storage.modify)."
                    .into(),
            });
        }
        let mut exempt = Exempt { hidden, ..Exempt::default() };
        let keeps = !(scope.replaces(from) && scope.replaces(to));
        if keeps {
            self.is_free(to)?;
            exempt.unreplaced = self.unreplaced(to);
        }
        if keeps || !tree {
            exempt.also = vec![from.clone(), to.clone()];
        }
        Ok((guarded(&self.whole, &self.scope, exempt), !tree))
    }

    /// Whether what may only have been created could be replaced or removed once it is called `to`: as an unfinished upload, which
    /// may be begun anew, or where the session may do more.
    fn ends_by(&self, from: &VirtualPath, to: &VirtualPath) -> bool {
        let unfinished = |place: &VirtualPath| place.file_name().is_some_and(is_temporary_name);
        self.scope.replaces(to) || unfinished(to) && !unfinished(from)
    }

    /// The place in the store of a path of the session.
    pub(crate) fn locate(&self, path: &VirtualPath) -> Result<VirtualPath, Failure> {
        self.scope.place(path).ok_or(Failure::NotAllowed)
    }

    /// Where the session begins.
    pub(crate) fn home(&self) -> VirtualPath {
        self.scope.seen(&self.account.home).unwrap_or_else(VirtualPath::root)
    }

    pub(crate) fn allows(&self, place: &VirtualPath, access: Access) -> bool {
        self.scope.allows(place, access)
    }

    pub(crate) fn unrestricted(&self) -> bool {
        self.scope.unrestricted()
    }

    /// The place of something that exists; symbolic links are followed.
    pub(crate) fn existing(&self, path: &VirtualPath, access: Access) -> Result<VirtualPath, Failure> {
        let place = self.written(path, access)?;
        if self.unrestricted() {
            return Ok(place);
        }
        let real = self.store.real_path(&place).map_err(failure)?;
        self.permit(real, access)
    }

    /// The place of a file whose checksum is asked for, and the store that opens it. That of a whole file is an attribute,
    /// which tokens permit that do not permit to read; those of parts would tell the content.
    pub(crate) fn summed(
        &self,
        path: &VirtualPath,
        whole: bool,
    ) -> Result<(VirtualPath, Arc<dyn Store>), Failure> {
        let place = self.locate(path)?;
        if whole && !self.unrestricted() && self.scope.sums(&place) {
            let real = self.store.real_path(&place).map_err(failure)?;
            if self.scope.sums(&real) {
                let exempt = Exempt { also: vec![real.clone()], ..Exempt::default() };
                return Ok((real, guarded(&self.whole, &self.scope, exempt)));
            }
        }
        Ok((self.existing(path, Access::Read)?, Arc::clone(&self.store)))
    }

    /// The place of an entry itself, which need not exist and is not followed where it is a link; its directory must
    /// exist.
    pub(crate) fn entry(&self, path: &VirtualPath, access: Access) -> Result<VirtualPath, Failure> {
        let place = self.written(path, access)?;
        if self.unrestricted() {
            return Ok(place);
        }
        let (Some(parent), Some(name)) = (place.parent(), place.file_name()) else {
            return Ok(place);
        };
        let real = self.store.real_path(&parent).map_err(failure)?;
        let real = real.child(name).map_err(|_| Failure::NotAllowed)?;
        self.permit(real, access)
    }

    /// The place of a file to be written, and what is there: `None` where nothing is. What exists is followed, unless it is a
    /// symbolic link that the file `replaces`.
    pub(crate) fn target(
        &self,
        path: &VirtualPath,
        replaces: bool,
    ) -> Result<(VirtualPath, Option<Metadata>), Failure> {
        let entry = self.entry(path, Access::Create)?;
        let place = match self.store.stat(&entry, false) {
            Ok(metadata) if metadata.kind == Kind::Symlink && replaces => return Ok((entry, None)),
            Ok(metadata) if metadata.kind == Kind::Symlink => match self.store.real_path(&entry) {
                Ok(real) => self.permit(real, Access::Create)?,
                // Through a link that leads nowhere a file would appear in a place that nobody has checked.
                Err(error) if error.is_not_found() && self.unrestricted() => entry,
                Err(error) if error.is_not_found() => return Err(Failure::NotAllowed),
                Err(error) => return Err(failure(error)),
            },
            Ok(metadata) => return Ok((entry, Some(metadata))),
            Err(error) if error.is_not_found() => return Ok((entry, None)),
            // Who may write here need not be shown what is here.
            Err(_) => entry,
        };
        match self.store.stat(&place, true) {
            Ok(metadata) => Ok((place, Some(metadata))),
            Err(error) if error.is_not_found() => Ok((place, None)),
            Err(error) => Err(failure(error)),
        }
    }

    /// The place of an entry that is moved or removed: never the session's own root, which the store would let go where it
    /// is not that of the store.
    pub(crate) fn removable(&self, path: &VirtualPath) -> Result<VirtualPath, Failure> {
        let entry = self.entry(path, Access::Write)?;
        if path.is_root() {
            return Err(failure(Error::new(ErrorKind::Busy, "remove", path.as_bytes())));
        }
        Ok(entry)
    }

    /// The place of an entry that is moved or removed with all that is beneath.
    pub(crate) fn tree(&self, path: &VirtualPath) -> Result<VirtualPath, Failure> {
        let entry = self.removable(path)?;
        if self.scope.allows_tree(&entry) { Ok(entry) } else { Err(Failure::NotAllowed) }
    }

    /// The place of an entry that gets another name, or of that name; what is beneath is another question.
    pub(crate) fn renamable(&self, path: &VirtualPath) -> Result<VirtualPath, Failure> {
        let entry = self.entry(path, Access::Create)?;
        if path.is_root() {
            return Err(failure(Error::new(ErrorKind::Busy, "rename", path.as_bytes())));
        }
        if self.scope.may_rename_file(&entry) { Ok(entry) } else { Err(Failure::NotAllowed) }
    }

    /// Whether an entry of a directory is shown.
    pub(crate) fn shows(&self, place: &VirtualPath) -> bool {
        self.allows(place, Access::List)
            && self.scope.is_named(place)
            && self.scope.token.as_ref().is_none_or(|token| token.shows(place))
    }

    /// Where a symbolic link in `directory` (a place) would lead, as far as rules go: `None` where they forbid it.
    pub(crate) fn link_target(&self, directory: &VirtualPath, target: &[u8]) -> Option<VirtualPath> {
        // An absolute link counts from the root of the store, as the store resolves it.
        let place = directory.join(target).ok()?;
        let real = self.store.real_path(&place).unwrap_or(place);
        self.allows(&real, Access::List).then_some(real)
    }

    fn written(&self, path: &VirtualPath, access: Access) -> Result<VirtualPath, Failure> {
        if access.writes() && self.scope.read_only {
            return Err(Failure::System {
                errno: Errno::ACCESS.raw_os_error(),
                action: "write: read-only account".into(),
            });
        }
        self.permit(self.locate(path)?, access)
    }

    fn permit(&self, place: VirtualPath, access: Access) -> Result<VirtualPath, Failure> {
        if self.allows(&place, access) {
            return Ok(place);
        }
        tracing::debug!(user = self.account.name, path = ?place.as_bytes().as_bstr(), ?access, "path not allowed");
        Err(Failure::NotAllowed)
    }
}

/// What holds for one operation, beside the scope.
#[derive(Default)]
struct Exempt {
    /// May be used in any way: they have been checked.
    also: Vec<VirtualPath>,
    /// Nothing may be put in the place of what is there.
    unreplaced: Option<VirtualPath>,
    /// As in [`Scope::permits`].
    hidden: bool,
}

/// The store as the session may use it.
fn guarded(whole: &Arc<dyn Store>, scope: &Arc<Scope>, exempt: Exempt) -> Arc<dyn Store> {
    if scope.unrestricted() {
        return Arc::clone(whole);
    }
    let (scope, unguarded) = (Arc::clone(scope), Arc::clone(whole));
    let Exempt { also, unreplaced, hidden } = exempt;
    let keeps = unreplaced.is_some();
    let guard: Guard = Arc::new(move |place, purpose| {
        let replaces = purpose == Purpose::WriteTree
            && unreplaced.as_ref() == Some(place)
            && !unguarded.stat(place, false).is_err_and(|error| error.is_not_found());
        let permitted = !replaces && (scope.permits(place, purpose, hidden) || also.contains(place));
        if !permitted {
            tracing::debug!(path = ?place.as_bytes().as_bstr(), ?purpose, "place not allowed");
        }
        permitted
    });
    let store = whole.guarded(guard).unwrap_or_else(|| Arc::clone(whole));
    // Between the guard's answer and the renaming others may make the name.
    if keeps { store.without_replacing().unwrap_or(store) } else { store }
}
