//! Which paths a session may use. Rules are checked on a path as it is written, and again with its symbolic links
//! resolved, so that no link leads out of what is open; and once more by the store on what it really has opened, since
//! another session may have put a link in the place of a directory meanwhile.

use std::sync::Arc;

use bstr::ByteSlice as _;
use ropewalk_protocol::path::VirtualPath;
use ropewalk_protocol::server::Failure;
use ropewalk_security::{Access, Rules};
use ropewalk_storage::{
    Error, ErrorKind, Guard, Kind, Metadata, Purpose, Store, is_temporary_name, journal_name,
    journal_of_part, part_name, target_of_temporary,
};
use ropewalk_tokens::Capabilities;
use rustix::io::Errno;

use crate::accounts::Login;
use crate::operations::failure;

/// What a session may use of its store.
#[derive(Clone)]
pub(crate) struct Scope {
    /// What the session sees as `/` (SITE CHROOT): a name of what `restriction` is about.
    pub(crate) root: VirtualPath,
    /// What was `/` when the session restricted itself: a name of what `rules` are about.
    pub(crate) base: VirtualPath,
    /// All of which have to permit what is done.
    pub(crate) rules: Vec<Rules>,
    /// SITE RESTRICT: paths as the session saw them then.
    pub(crate) restriction: Rules,
    pub(crate) read_only: bool,
    /// What the bearer token permits, of places in the store; `None`: nobody came with one that says.
    pub(crate) token: Option<Arc<Capabilities>>,
}

impl Scope {
    /// What a place is called, seen from the root of the store; `None` where it has no name.
    fn name(&self, place: &VirtualPath) -> Option<VirtualPath> {
        self.rules.iter().try_fold(place.clone(), |name, rules| rules.name(&name))
    }

    /// What a place was called when the session restricted itself.
    fn within(&self, place: &VirtualPath) -> Option<VirtualPath> {
        self.name(place)?.relative_to(&self.base)
    }

    /// What the session calls a place; `None` where it cannot name it.
    pub(crate) fn seen(&self, place: &VirtualPath) -> Option<VirtualPath> {
        self.restriction.name(&self.within(place)?)?.relative_to(&self.root)
    }

    /// The place that the session calls so.
    fn place(&self, path: &VirtualPath) -> Option<VirtualPath> {
        let name = self.restriction.place(&path.beneath(&self.root))?.beneath(&self.base);
        self.rules.iter().rev().try_fold(name, |place, rules| rules.place(&place))
    }

    /// With `place` as `/`; `None` where the session cannot name it.
    pub(crate) fn rooted(&self, place: &VirtualPath) -> Option<Self> {
        let root = self.seen(place)?.beneath(&self.root);
        Some(Self { root, ..self.clone() })
    }

    /// With a restriction of paths as the session sees them now.
    pub(crate) fn restricted(&self, restriction: Rules) -> Self {
        // There is none yet: names are those of the account's rules.
        let base = self.root.beneath(&self.base);
        Self { restriction, base, root: VirtualPath::root(), ..self.clone() }
    }

    /// Whether an entry is called as its directory says: otherwise it is shown elsewhere, or nowhere.
    fn is_named(&self, place: &VirtualPath) -> bool {
        if !self.restriction.has_aliases() && !self.rules.iter().any(Rules::has_aliases) {
            return true;
        }
        let (Some(parent), Some(entry)) = (place.parent(), place.file_name()) else { return true };
        let there = self.seen(&parent).and_then(|parent| parent.child(entry).ok());
        there.is_some() && self.seen(place) == there
    }

    /// Whether rules permit this place in the store, symbolic links aside. What an upload has left is as open as the file that
    /// it is to be.
    pub(crate) fn allows(&self, place: &VirtualPath, access: Access) -> bool {
        with_target(place, &|place| self.allows_itself(place, access))
    }

    fn allows_itself(&self, place: &VirtualPath, access: Access) -> bool {
        if access.writes() && self.read_only {
            return false;
        }
        self.rules.iter().all(|rules| rules.allow(place, access))
            && self.restricts(place, |rules, path| rules.allow(path, access))
            && self.token_allows(place, access)
    }

    fn token_allows(&self, place: &VirtualPath, access: Access) -> bool {
        self.token.as_ref().is_none_or(|token| match access {
            Access::Read => token.reads(place),
            Access::Write => token.modifies(place),
            Access::Create => token.creates(place),
            Access::MakeDirectory => token.makes_directory(place),
            Access::List => token.sees(place),
        })
    }

    /// Whether the checksum of the whole file may be asked for where it may not be read.
    fn sums(&self, place: &VirtualPath) -> bool {
        with_target(place, &|place| {
            self.rules.iter().all(|rules| rules.allow(place, Access::Read))
                && self.restricts(place, |rules, path| rules.allow(path, Access::Read))
                && self.token.as_ref().is_some_and(|token| token.sums(place))
        })
    }

    /// What SITE RESTRICT says of a place; of what the session cannot name nothing is true.
    fn restricts(&self, place: &VirtualPath, says: impl Fn(&Rules, &VirtualPath) -> bool) -> bool {
        self.within(place).is_some_and(|path| {
            self.restriction.name(&path).is_some_and(|name| name.starts_with(&self.root))
                && says(&self.restriction, &path)
        })
    }

    /// Whether what is at the place already may be replaced or removed by whoever may write there.
    fn replaces(&self, place: &VirtualPath) -> bool {
        self.token_allows(place, Access::Write)
    }

    /// Whether the place may be moved or removed with all that is beneath.
    fn allows_tree(&self, place: &VirtualPath) -> bool {
        self.replaces(place) && self.may_rename(place)
    }

    /// Whether the place may get another name, or be one, where nothing is removed by it.
    fn may_rename(&self, place: &VirtualPath) -> bool {
        self.may_rename_file(place)
            && with_target(place, &|place| {
                self.rules.iter().all(|rules| rules.allow_tree(place))
                    && self.restricts(place, Rules::allow_tree)
            })
    }

    /// The same of what has nothing beneath it.
    fn may_rename_file(&self, place: &VirtualPath) -> bool {
        // The session's own root is as fixed as that of the store.
        self.seen(place).is_some_and(|seen| !seen.is_root()) && self.allows(place, Access::Create)
    }

    /// Whether the place may be read with all that is beneath.
    fn allows_reading_tree(&self, place: &VirtualPath) -> bool {
        with_target(place, &|place| {
            self.token_allows(place, Access::Read)
                && self.rules.iter().all(|rules| rules.allow_reading_tree(place))
                && self.restricts(place, Rules::allow_reading_tree)
        })
    }

    /// Whether neither the place nor anything beneath may be read.
    fn hides_tree(&self, place: &VirtualPath) -> bool {
        !with_target(place, &|place| {
            let hidden = self.seen(place).is_none()
                || self.rules.iter().any(|rules| rules.hide_tree(place))
                || self.restricts(place, Rules::hide_tree)
                || self.token.as_ref().is_some_and(|token| token.hides_tree(place));
            !hidden
        })
    }

    /// What may not be read (in a drop box, say) must not become readable by another name: with `hidden` it may be
    /// moved, but only to where nothing may be read either.
    fn permits(&self, place: &VirtualPath, purpose: Purpose, hidden: bool) -> bool {
        match purpose {
            Purpose::WriteTree if hidden => self.allows_tree(place) && self.hides_tree(place),
            Purpose::Move if !hidden => self.allows_tree(place) && self.allows_reading_tree(place),
            Purpose::See => self.allows(place, Access::List),
            Purpose::Read => self.allows(place, Access::Read),
            Purpose::Write => self.allows(place, Access::Write),
            Purpose::WriteTree | Purpose::Move => self.allows_tree(place),
        }
    }

    /// Nothing within the store is closed to the session, so links need not be looked at: the store itself keeps
    /// them inside.
    pub(crate) fn unrestricted(&self) -> bool {
        self.root.is_root()
            && self.base.is_root()
            && self.restriction.is_empty()
            && self.rules.iter().all(Rules::is_empty)
            && self.token.is_none()
    }
}

/// Whether something is so of a place, and, where that is what an upload has left, of the file that it is to be.
fn with_target(place: &VirtualPath, is_so: &dyn Fn(&VirtualPath) -> bool) -> bool {
    is_so(place) && target_of_temporary(place).is_none_or(|whole| with_target(&whole, is_so))
}

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
