//! Records the source of each destination, so that two sources are not written to one file.

use super::*;
use crate::spelling::Speller;
use crate::spelling::made_by;

/// Whether a destination already has a source.
pub(super) enum Claim {
    First,
    /// The same source.
    Repeated,
    /// Another source.
    Taken,
}

pub(super) fn claimed_already(source: &Place, destination: &Place) -> RemoteError {
    let (source, destination) = (source.display(), destination.display());
    RemoteError::Usage(format!("{source}: another file of this copy goes to {destination} already"))
}

impl Plan<'_> {
    /// Records that a source goes to a destination.
    pub(super) fn claim(&mut self, source: &Place, destination: &Place) -> Claim {
        let (from, to) = (self.spelled(source), self.spelled(destination));
        let (from, to) = (self.chance.hash_one(from), self.chance.hash_one(to));
        match self.claims.get(&to) {
            None => {
                self.claims.insert(to, from);
                Claim::First
            }
            Some(other) if *other == from => Claim::Repeated,
            Some(_) => Claim::Taken,
        }
    }

    /// Whether a source is the first for its destination. A repeated pair is reported.
    ///
    /// # Errors
    /// Taken source goes to that destination.
    pub(super) fn is_first(&mut self, source: &Place, destination: &Place) -> Result<bool, RemoteError> {
        match self.claim(source, destination) {
            Claim::First => Ok(true),
            Claim::Repeated => {
                self.ctx.report.left_out(source.display(), "named twice");
                Ok(false)
            }
            Claim::Taken => Err(claimed_already(source, destination)),
        }
    }

    /// A key that is equal for all names of a place, as far as that can be determined locally.
    fn spelled(&mut self, place: &Place) -> Spot {
        let path = place.path();
        let path = match place {
            Place::Local(_) => self.speller.local(&path).into(),
            Place::Remote(..) => spelling::plain(&path),
            Place::Standard | Place::Measure(_) => path,
        };
        (self.key(place), path)
    }
}

/// Whether two sources may be directories that are merged at the destination.
pub(super) fn may_merge(pairs: &[Pair]) -> bool {
    let (mut made, mut speller) = (HashSet::new(), Speller::default());
    pairs.iter().any(|pair| {
        let above = directory_of(pair.source.path());
        is_glob(above) || made_by(pair, &mut speller).is_some_and(|made_here| !made.insert(made_here))
    })
}
