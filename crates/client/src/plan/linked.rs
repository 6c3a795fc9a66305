//! Destinations that the user named and that are symbolic links.

use super::*;

/// Longest chain of symbolic links that is followed at a server.
const LINKS_IN_A_ROW: usize = 40;

impl Plan<'_> {
    /// The file that a named destination leads to if it is a symbolic link: the link stays.
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

    /// A server reports the target of a link, which may be another link. If the target is
    /// uncertain, the link is replaced.
    fn linked_there(&mut self, destination: &Place, there: Option<&Entry>) -> Result<Place, RemoteError> {
        let Some(identity) = there.and_then(|there| there.identity) else { return Ok(destination.clone()) };
        let (mut place, mut there) = (destination.clone(), there.cloned());
        for _ in 0..LINKS_IN_A_ROW {
            // If a directory above is a link, `..` leads elsewhere than the names suggest.
            let same = |there: &Entry| there.kind == Kind::File && there.identity == Some(identity);
            let Some(target) = there.filter(same).map(|there| there.target) else { break };
            let Some(target) = target else { return Ok(place) };
            let path = place.path();
            let absolute = target.starts_with(b"/");
            let whole = if absolute { target } else { join(parent(&path).unwrap_or(b"/"), &target) };
            // A path relative to the home directory has no known absolute form.
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
