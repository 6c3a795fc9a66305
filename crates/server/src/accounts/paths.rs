//! The paths that a session may use.
//!
//! Rules are checked on a path as it is written, and again with its symbolic links resolved, so
//! that no link leads out of the permitted places. The store checks them once more on the file that
//! it has opened, since another session may have replaced a directory with a link meanwhile.

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
    /// Changes the permissions of the session.
    pub(crate) fn set_scope(&mut self, scope: Scope) {
        self.scope = Arc::new(scope);
        // It was chosen with other rights.
        self.program = None;
        self.store = restricted(&self.whole, &self.scope, Exempt::default());
    }

    /// The store for something new at `place`, which has been checked. The part file of an upload
    /// is beside it, under names that rules do not have to know.
    pub(crate) fn store_for(&self, place: &VirtualPath) -> Arc<dyn Store> {
        let mut also = vec![place.clone(), part_name(place), journal_name(place)];
        also.extend(journal_of_part(place));
        restricted(
            &self.whole,
            &self.scope,
            Exempt { also, unreplaced: self.unreplaced(place), hidden: false },
        )
    }

    /// The place, if it may be written but an existing file there must not be replaced.
    fn unreplaced(&self, place: &VirtualPath) -> Option<VirtualPath> {
        (!self.scope.replaces(place)).then(|| place.clone())
    }

    /// Fails if there is a file at the place that must not be replaced. A part file does not count,
    /// since its upload is resumed.
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

    /// Returns the store in which `from` may be renamed to `to`, both of them
    /// [renamable](Self::renamable) places, and whether this only holds for files: rules may close
    /// what could be beneath a directory.
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
        Ok((restricted(&self.whole, &self.scope, exempt), !tree))
    }

    /// Whether a file that the session may only create could be replaced or removed once it is
    /// named `to`: as the part file of an upload, which may be restarted, or in a place where the
    /// session has more rights.
    fn ends_by(&self, from: &VirtualPath, to: &VirtualPath) -> bool {
        let unfinished = |place: &VirtualPath| place.file_name().is_some_and(is_temporary_name);
        self.scope.replaces(to) || unfinished(to) && !unfinished(from)
    }

    /// The place in the store for a path of the session.
    pub(crate) fn locate(&self, path: &VirtualPath) -> Result<VirtualPath, Failure> {
        self.scope.place(path).ok_or(Failure::NotAllowed)
    }

    /// The directory in which the session begins.
    pub(crate) fn home(&self) -> VirtualPath {
        self.scope.seen(&self.account.home).unwrap_or_else(VirtualPath::root)
    }

    pub(crate) fn allows(&self, place: &VirtualPath, access: Access) -> bool {
        self.scope.allows(place, access)
    }

    pub(crate) fn unrestricted(&self) -> bool {
        self.scope.unrestricted()
    }

    /// The place of something that exists. Symbolic links are followed.
    pub(crate) fn existing(&self, path: &VirtualPath, access: Access) -> Result<VirtualPath, Failure> {
        let place = self.written(path, access)?;
        if self.unrestricted() {
            return Ok(place);
        }
        let real = self.store.real_path(&place).map_err(failure)?;
        self.permit(real, access)
    }

    /// The place of a file whose checksum is requested, and the store that opens it. The sum of a
    /// whole file is an attribute, which some tokens permit that do not permit reading. Sums of
    /// ranges would reveal the content.
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
                return Ok((real, restricted(&self.whole, &self.scope, exempt)));
            }
        }
        Ok((self.existing(path, Access::Read)?, Arc::clone(&self.store)))
    }

    /// The place of an entry itself, which need not exist. A symbolic link is not followed. The
    /// directory must exist.
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

    /// The place of a file to be written, and what exists there. Existing files are followed,
    /// unless the upload `replaces` a symbolic link.
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
                // Through a dangling link a file would be created in a place that was not checked.
                Err(error) if error.is_not_found() && self.unrestricted() => entry,
                Err(error) if error.is_not_found() => return Err(Failure::NotAllowed),
                Err(error) => return Err(failure(error)),
            },
            Ok(metadata) => return Ok((entry, Some(metadata))),
            Err(error) if error.is_not_found() => return Ok((entry, None)),
            // A user who may write here is not necessarily allowed to see what is here.
            Err(_) => entry,
        };
        match self.store.stat(&place, true) {
            Ok(metadata) => Ok((place, Some(metadata))),
            Err(error) if error.is_not_found() => Ok((place, None)),
            Err(error) => Err(failure(error)),
        }
    }

    /// The place of an entry to be moved or removed. It is never the session's own root, which the
    /// store would remove if it is not the root of the store.
    pub(crate) fn removable(&self, path: &VirtualPath) -> Result<VirtualPath, Failure> {
        let entry = self.entry(path, Access::Write)?;
        if path.is_root() {
            return Err(failure(Error::new(ErrorKind::Busy, "remove", path.as_bytes())));
        }
        Ok(entry)
    }

    /// The place of an entry to be moved or removed with everything beneath.
    pub(crate) fn tree(&self, path: &VirtualPath) -> Result<VirtualPath, Failure> {
        let entry = self.removable(path)?;
        if self.scope.allows_tree(&entry) { Ok(entry) } else { Err(Failure::NotAllowed) }
    }

    /// The place of an entry to be renamed, or its new name. Entries beneath it are checked
    /// separately.
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

    /// The target of a symbolic link in `directory` (a place); `None` if rules forbid it.
    pub(crate) fn link_target(&self, directory: &VirtualPath, target: &[u8]) -> Option<VirtualPath> {
        // An absolute link counts from the root of the store, since the store resolves it so.
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

/// Exemptions from the scope for one operation.
#[derive(Default)]
struct Exempt {
    /// Places that were checked and may be used in any way.
    also: Vec<VirtualPath>,
    /// A place where an existing file must not be replaced.
    unreplaced: Option<VirtualPath>,
    /// As in [`Scope::permits`].
    hidden: bool,
}

/// The store as the session may use it.
fn restricted(whole: &Arc<dyn Store>, scope: &Arc<Scope>, exempt: Exempt) -> Arc<dyn Store> {
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
    // Between the check and the rename another session may create the name.
    if keeps { store.without_replacing().unwrap_or(store) } else { store }
}
