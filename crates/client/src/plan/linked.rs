//! Destinations that are named and are symbolic links.

use super::*;

/// Symbolic links that lead to symbolic links at a server, and are followed.
const LINKS_IN_A_ROW: usize = 40;

impl Plan<'_> {
    /// The file that a destination leads to, where that itself is named and is a symbolic link: the link stays.
    pub(super) fn linked(
        &mut self,
        destination: &Place,
        there: Option<&Entry>,
    ) -> Result<Place, RemoteError> {
        match destination {
            Place::Local(path) => Ok(self.linked_here(destination, path)),
            Place::Remote(..) => self.linked_there(destination, there),
            Place::Standard | Place::Measure(_) => Ok(destination.clone()),
        }
    }

    /// A server says of a link what it leads to, perhaps another link. Where that is not known for sure, the link is replaced.
    fn linked_there(&mut self, destination: &Place, there: Option<&Entry>) -> Result<Place, RemoteError> {
        let Some(identity) = there.and_then(|there| there.identity) else { return Ok(destination.clone()) };
        let (mut place, mut there) = (destination.clone(), there.cloned());
        for _ in 0..LINKS_IN_A_ROW {
            // With a link among the directories above, `..` leads elsewhere than names do.
            let same = |there: &Entry| there.kind == Kind::File && there.identity == Some(identity);
            let Some(target) = there.filter(same).map(|there| there.target) else { break };
            let Some(target) = target else { return Ok(place) };
            let path = place.path();
            let absolute = target.starts_with(b"/");
            let whole = if absolute { target } else { join(parent(&path).unwrap_or(b"/"), &target) };
            // What begins at the home of the log-in has no place from the root on.
            let rooted = whole.starts_with(b"/");
            let whole = match VirtualPath::parse(&whole) {
                Ok(found) if rooted => found.as_bytes().into(),
                Ok(_) if !whole.split_str("/").any(|name| name == b"..") => whole,
                _ => break,
            };
            place = with_path(destination, whole);
            there = self.look(&place)?;
        }
        Ok(destination.clone())
    }

    fn linked_here(&self, destination: &Place, path: &VirtualPath) -> Place {
        let store = &self.ctx.store;
        let is_link = store.stat(path, false).is_ok_and(|there| there.kind == Kind::Symlink)
            && store.stat(path, true).is_ok_and(|there| there.kind == Kind::File);
        match store.real_path(path) {
            Ok(real) if is_link && !is_device(path.as_bytes()) => Place::Local(real),
            _ => destination.clone(),
        }
    }
}
