//! What a session may use of its store: rules, a restriction, a token's capabilities.

use std::sync::Arc;

use ropewalk_protocol::path::VirtualPath;
use ropewalk_security::{Access, Rules};
use ropewalk_storage::{Purpose, target_of_temporary};
use ropewalk_tokens::Capabilities;

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
    pub(crate) fn place(&self, path: &VirtualPath) -> Option<VirtualPath> {
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
    pub(crate) fn is_named(&self, place: &VirtualPath) -> bool {
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
    pub(crate) fn sums(&self, place: &VirtualPath) -> bool {
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
    pub(crate) fn replaces(&self, place: &VirtualPath) -> bool {
        self.token_allows(place, Access::Write)
    }

    /// Whether the place may be moved or removed with all that is beneath.
    pub(crate) fn allows_tree(&self, place: &VirtualPath) -> bool {
        self.replaces(place) && self.may_rename(place)
    }

    /// Whether the place may get another name, or be one, where nothing is removed by it.
    pub(crate) fn may_rename(&self, place: &VirtualPath) -> bool {
        self.may_rename_file(place)
            && with_target(place, &|place| {
                self.rules.iter().all(|rules| rules.allow_tree(place))
                    && self.restricts(place, Rules::allow_tree)
            })
    }

    /// The same of what has nothing beneath it.
    pub(crate) fn may_rename_file(&self, place: &VirtualPath) -> bool {
        // The session's own root is as fixed as that of the store.
        self.seen(place).is_some_and(|seen| !seen.is_root()) && self.allows(place, Access::Create)
    }

    /// Whether the place may be read with all that is beneath.
    pub(crate) fn allows_reading_tree(&self, place: &VirtualPath) -> bool {
        with_target(place, &|place| {
            self.token_allows(place, Access::Read)
                && self.rules.iter().all(|rules| rules.allow_reading_tree(place))
                && self.restricts(place, Rules::allow_reading_tree)
        })
    }

    /// Whether neither the place nor anything beneath may be read.
    pub(crate) fn hides_tree(&self, place: &VirtualPath) -> bool {
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
