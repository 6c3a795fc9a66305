//! Dangling symbolic links that a server's listings of directories omit, while its listing of a
//! whole tree contains them.

use super::*;

/// Entries of a tree that the server's listings of directories may omit. Names are relative to the
/// top.
#[derive(Default)]
pub(super) struct Hidden {
    /// All symbolic links in the listing of the whole tree: by directory, then by name.
    links: HashMap<BString, HashMap<BString, Entry>>,
    /// Directories in that listing; `None` if nothing is hidden. It omits the contents of a
    /// directory that is the first of its siblings and sorts before a dot ([`Plan::whole_tree`]).
    told: Option<HashSet<BString>>,
    /// There may be more links.
    pub(super) incomplete: bool,
}

impl Hidden {
    /// Requests the listing beneath a directory; empty: the top. Returns the names of the links.
    pub(super) fn add(
        &mut self,
        side: &mut Side,
        top: &Place,
        directory: &bstr::BStr,
    ) -> Result<Vec<BString>, RemoteError> {
        let mut found = Vec::new();
        let Side::Remote(session) = side else { return Ok(found) };
        if !session.can.recursive || !session.can.facts || !session.quirks.hides_dangling_links {
            return Ok(found);
        }
        let told = self.told.get_or_insert_default();
        told.insert(directory.into());
        let beneath =
            |name: &BString| if directory.is_empty() { name.clone() } else { join(directory, name) };
        let path = if directory.is_empty() { top.path() } else { join(&top.path(), directory) };
        let listing = match session.tree(&path) {
            Err(e) if e.breaks_session() => return Err(e),
            Err(_) => {
                self.incomplete = true;
                return Ok(found);
            }
            Ok(listing) => listing,
        };
        // For a link to a directory, it contains only the link.
        let mut listing = listing.peekable();
        let name = base_name(&path);
        let itself = |entry: &Entry| entry.kind == Kind::Symlink && entry.name == name;
        let first = listing.next_if(|first| first.as_ref().is_ok_and(itself));
        if first.is_some() && listing.peek().is_none() {
            match session.stat(&path) {
                Ok(entry) if entry.target.is_some() => return Ok(found),
                Err(e) if e.breaks_session() => return Err(e),
                // A directory that contains only a link of its own name.
                _ => {}
            }
        }
        for entry in first.into_iter().chain(listing) {
            match entry {
                Ok(entry) if entry.kind == Kind::Symlink => {
                    let name = beneath(&entry.name);
                    let within = self.links.entry(directory_of(name.as_bstr()).into()).or_default();
                    let base: BString = base_name(&name).into();
                    within.insert(base.clone(), Entry { name: base, ..entry });
                    found.push(name);
                }
                Ok(entry) if entry.is_directory() => {
                    told.insert(beneath(&entry.name));
                }
                Ok(_) => {}
                Err(_) => self.incomplete = true,
            }
        }
        Ok(found)
    }

    /// Whether the contents of a directory are unknown.
    pub(super) fn misses(&self, directory: &bstr::BStr) -> bool {
        self.told.as_ref().is_some_and(|told| !told.contains(directory))
    }

    /// Removes a link that a directory's listing contains.
    pub(super) fn is_shown(&mut self, name: &bstr::BStr) {
        if let Some(within) = self.links.get_mut(directory_of(name)) {
            within.remove(base_name(name).as_bstr());
        }
    }

    /// Takes the links in a directory out of the collection.
    pub(super) fn take(&mut self, directory: &bstr::BStr) -> HashMap<BString, Entry> {
        self.links.remove(directory).unwrap_or_default()
    }

    /// The links that no listing contained, with their full names.
    pub(super) fn rest(self) -> impl Iterator<Item = Entry> {
        self.links.into_iter().flat_map(|(directory, within)| {
            within.into_values().map(move |entry| {
                let name =
                    if directory.is_empty() { entry.name.clone() } else { join(&directory, &entry.name) };
                Entry { name, ..entry }
            })
        })
    }
}

impl Plan<'_> {
    /// Adds the hidden entries beneath a directory at the source of a mirror.
    pub(super) fn hidden_at_source(
        &self,
        from: &mut Side,
        source: &Place,
        directory: &bstr::BStr,
        hidden: &mut Hidden,
        synced: &mut Synced,
    ) -> Result<(), RemoteError> {
        let options = self.ctx.options();
        // Dangling links are kept, or reported.
        if options.preserve.links || options.selection.delete || !options.selection.skip_dangling {
            let found = from.ask(Some(&reopen(self.ctx)), &mut |side| hidden.add(side, source, directory))?;
            synced.links_unknown |= hidden.incomplete;
            synced.links.extend(found);
        }
        Ok(())
    }

    /// Adds the hidden entries beneath a directory at the destination: they are compared, and
    /// removed, like visible ones.
    pub(super) fn hidden_there(
        &mut self,
        destination: &Place,
        directory: &bstr::BStr,
        hidden: &mut Hidden,
    ) -> Result<(), RemoteError> {
        let options = self.ctx.options();
        if options.preserve.links || options.selection.delete {
            self.ask(destination, true, &mut |side| hidden.add(side, destination, directory))?;
        }
        Ok(())
    }
}
