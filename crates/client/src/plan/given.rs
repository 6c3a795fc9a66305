//! Which destinations have a source already: two files of one name do not become one.

use super::*;
use crate::copy::made_by;

/// Whether a destination has a source already.
pub(super) enum Given {
    First,
    /// The same one.
    Twice,
    Another,
}

pub(super) fn given_already(source: &Place, destination: &Place) -> RemoteError {
    let (source, destination) = (source.display(), destination.display());
    RemoteError::Usage(format!("{source}: another file of this copy is {destination} already"))
}

impl Plan<'_, '_> {
    /// Notes that a source goes to a destination.
    pub(super) fn give(&mut self, source: &Place, destination: &Place) -> Given {
        let hash = |place: &Place| self.chance.hash_one((self.key(place), place.path()));
        let (from, to) = (hash(source), hash(destination));
        match self.given.get(&to) {
            None => {
                self.given.insert(to, from);
                Given::First
            }
            Some(other) if *other == from => Given::Twice,
            Some(_) => Given::Another,
        }
    }
}

/// Whether two sources may be directories that become one at the destination.
pub(super) fn may_merge(pairs: &[Pair]) -> bool {
    let mut made = HashSet::new();
    pairs.iter().any(|pair| {
        let above = directory_of(pair.source.path());
        is_glob(above) || made_by(pair).is_some_and(|made_here| !made.insert(made_here))
    })
}
