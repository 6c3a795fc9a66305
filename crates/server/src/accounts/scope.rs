//! The permissions of a session in its store: rules, a restriction, the capabilities of a token.
//!
//! A *place* is a path in the store; a *path* is what the session calls it. Aliases in rules, SITE
//! CHROOT and SITE RESTRICT make the difference.

use std::sync::Arc;

use ropewalk_protocol::path::VirtualPath;
use ropewalk_security::{Access, Rules};
use ropewalk_storage::{Purpose, target_of_temporary};
use ropewalk_tokens::Capabilities;

/// The part of its store that a session may use.
#[derive(Clone)]
pub(crate) struct Scope {
    /// The root of the session (SITE CHROOT), as a path of the `restriction`.
    pub(crate) root: VirtualPath,
    /// The root of the session at the time of SITE RESTRICT, as a path of the `rules`.
    pub(crate) base: VirtualPath,
    /// Rules that all have to permit an operation.
    pub(crate) rules: Vec<Rules>,
    /// SITE RESTRICT, with the paths of the session at that time.
    pub(crate) restriction: Rules,
    pub(crate) read_only: bool,
    /// The capabilities of the bearer token, for places in the store; `None` if there was no token,
    /// or one without capabilities.
    pub(crate) token: Option<Arc<Capabilities>>,
}

impl Scope {
    /// The name of a place, seen from the root of the store; `None` if it has no name.
    fn name(&self, place: &VirtualPath) -> Option<VirtualPath> {
        self.rules.iter().try_fold(place.clone(), |name, rules| rules.name(&name))
    }

    /// The path of a place when the session restricted itself.
    fn within(&self, place: &VirtualPath) -> Option<VirtualPath> {
        self.name(place)?.relative_to(&self.base)
    }

    /// The session's path for a place; `None` if it cannot name the place.
    pub(crate) fn seen(&self, place: &VirtualPath) -> Option<VirtualPath> {
        self.restriction.name(&self.within(place)?)?.relative_to(&self.root)
    }

    /// The place for a path of the session.
    pub(crate) fn place(&self, path: &VirtualPath) -> Option<VirtualPath> {
        let name = self.restriction.place(&path.beneath(&self.root))?.beneath(&self.base);
        self.rules.iter().rev().try_fold(name, |place, rules| rules.place(&place))
    }

    /// Whether SITE CHROOT or SITE RESTRICT has limited the session.
    pub(crate) fn is_narrowed(&self) -> bool {
        self.root != VirtualPath::root()
            || self.base != VirtualPath::root()
            || self.restriction != Rules::default()
    }

    /// This scope with `place` as root; `None` if the session cannot name it.
    pub(crate) fn rooted(&self, place: &VirtualPath) -> Option<Self> {
        let root = self.seen(place)?.beneath(&self.root);
        Some(Self { root, ..self.clone() })
    }

    /// This scope with a restriction of the session's current paths.
    pub(crate) fn restricted(&self, restriction: Rules) -> Self {
        // There is no restriction yet: paths are those of the account's rules.
        let base = self.root.beneath(&self.base);
        Self { restriction, base, root: VirtualPath::root(), ..self.clone() }
    }

    /// Whether the session sees an entry under the name that its directory has for it. Otherwise
    /// the entry is shown in another place, or nowhere.
    pub(crate) fn is_named(&self, place: &VirtualPath) -> bool {
        if !self.restriction.has_aliases() && !self.rules.iter().any(Rules::has_aliases) {
            return true;
        }
        let (Some(parent), Some(entry)) = (place.parent(), place.file_name()) else { return true };
        let there = self.seen(&parent).and_then(|parent| parent.child(entry).ok());
        there.is_some() && self.seen(place) == there
    }

    /// Whether rules permit this place, apart from symbolic links. A part file has the permissions
    /// of the file that it will become.
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

    /// Whether the checksum of the whole file may be requested although the file may not be read.
    pub(crate) fn sums(&self, place: &VirtualPath) -> bool {
        with_target(place, &|place| {
            self.rules.iter().all(|rules| rules.allow(place, Access::Read))
                && self.restricts(place, |rules, path| rules.allow(path, Access::Read))
                && self.token.as_ref().is_some_and(|token| token.sums(place))
        })
    }

    /// Evaluates SITE RESTRICT for a place. The result is false for places that the session cannot
    /// name.
    fn restricts(&self, place: &VirtualPath, says: impl Fn(&Rules, &VirtualPath) -> bool) -> bool {
        self.within(place).is_some_and(|path| {
            self.restriction.name(&path).is_some_and(|name| name.starts_with(&self.root))
                && says(&self.restriction, &path)
        })
    }

    /// Whether a file that exists at the place may be replaced or removed.
    pub(crate) fn replaces(&self, place: &VirtualPath) -> bool {
        self.token_allows(place, Access::Write)
    }

    /// Whether the place may be moved or removed with everything beneath.
    pub(crate) fn allows_tree(&self, place: &VirtualPath) -> bool {
        self.replaces(place) && self.may_rename(place)
    }

    /// Whether the place may be renamed, or be the new name, if nothing is removed by it.
    pub(crate) fn may_rename(&self, place: &VirtualPath) -> bool {
        self.may_rename_file(place)
            && with_target(place, &|place| {
                self.rules.iter().all(|rules| rules.allow_tree(place))
                    && self.restricts(place, Rules::allow_tree)
            })
    }

    /// As [`Self::may_rename`], for an entry with nothing beneath it.
    pub(crate) fn may_rename_file(&self, place: &VirtualPath) -> bool {
        // The root of the session cannot be renamed, nor can that of the store.
        self.seen(place).is_some_and(|seen| !seen.is_root()) && self.allows(place, Access::Create)
    }

    /// Whether the place may be read with everything beneath.
    pub(crate) fn allows_reading_tree(&self, place: &VirtualPath) -> bool {
        with_target(place, &|place| {
            self.token_allows(place, Access::Read)
                && self.rules.iter().all(|rules| rules.allow_reading_tree(place))
                && self.restricts(place, Rules::allow_reading_tree)
        })
    }

    /// Whether the session may read neither the place nor anything beneath.
    pub(crate) fn hides_tree(&self, place: &VirtualPath) -> bool {
        !with_target(place, &|place| {
            let hidden = self.seen(place).is_none()
                || self.rules.iter().any(|rules| rules.hide_tree(place))
                || self.restricts(place, Rules::hide_tree)
                || self.token.as_ref().is_some_and(|token| token.hides_tree(place));
            !hidden
        })
    }

    /// Whether the store may use the place for this purpose. A file that may not be read (in a drop
    /// box, for instance) must not become readable under another name: with `hidden` it may be
    /// moved, but only to places where nothing may be read either.
    pub(crate) fn permits(&self, place: &VirtualPath, purpose: Purpose, hidden: bool) -> bool {
        match purpose {
            Purpose::WriteTree if hidden => self.allows_tree(place) && self.hides_tree(place),
            Purpose::Move if !hidden => self.allows_tree(place) && self.allows_reading_tree(place),
            Purpose::See => self.allows(place, Access::List),
            Purpose::Read => self.allows(place, Access::Read),
            Purpose::Write => self.allows(place, Access::Write),
            Purpose::WriteTree | Purpose::Move => self.allows_tree(place),
        }
    }

    /// Whether the session may use everything in the store. Then links need no checks: the store
    /// itself keeps them inside.
    pub(crate) fn unrestricted(&self) -> bool {
        self.root.is_root()
            && self.base.is_root()
            && self.restriction.is_empty()
            && self.rules.iter().all(Rules::is_empty)
            && self.token.is_none()
    }
}

/// Whether a condition holds for a place and, if it is that of a part file or journal, for the file
/// of the upload.
fn with_target(place: &VirtualPath, is_so: &dyn Fn(&VirtualPath) -> bool) -> bool {
    is_so(place) && target_of_temporary(place).is_none_or(|whole| with_target(&whole, is_so))
}
