//! Symbolic links that lead nowhere, at GCT's servers: their listings of directories do not show them, that of a whole tree does.

use super::*;

/// What a server's listings of directories may not show of a tree. Names are relative to its top.
#[derive(Default)]
pub(super) struct Hidden {
    /// All symbolic links that the listing of the whole tree tells of: by directory, then by name.
    links: HashMap<BString, HashMap<BString, Entry>>,
    /// Directories that it tells of; `None` where nothing is hidden. It says nothing of what is beneath one that is the first
    /// of its names and sorts before a dot ([`Plan::whole_tree`]).
    told: Option<HashSet<BString>>,
    /// There may be more links.
    pub(super) incomplete: bool,
}

impl Hidden {
    /// Asks for what is beneath a directory; empty: the top. Gives the names of the links.
    pub(super) fn add(
        &mut self,
        side: &mut Side,
        top: &Place,
        directory: &bstr::BStr,
    ) -> Result<Vec<BString>, RemoteError> {
        let mut found = Vec::new();
        let Side::Remote(session) = side else { return Ok(found) };
        if !session.can.recursive || !session.can.facts || session.can.is_ours() {
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
        // Of a link that leads to a directory it tells of nothing but the link.
        let mut listing = listing.peekable();
        let name = base_name(&path);
        let itself = |entry: &Entry| entry.kind == Kind::Symlink && entry.name == name;
        let first = listing.next_if(|first| first.as_ref().is_ok_and(itself));
        if first.is_some() && listing.peek().is_none() {
            match session.stat(&path) {
                Ok(entry) if entry.target.is_some() => return Ok(found),
                Err(e) if e.breaks_session() => return Err(e),
                // A directory with nothing but a link of its own name in it.
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

    /// Whether nothing is known of what is beneath a directory.
    pub(super) fn misses(&self, directory: &bstr::BStr) -> bool {
        self.told.as_ref().is_some_and(|told| !told.contains(directory))
    }

    /// This one is shown.
    pub(super) fn is_shown(&mut self, name: &bstr::BStr) {
        if let Some(within) = self.links.get_mut(directory_of(name)) {
            within.remove(base_name(name).as_bstr());
        }
    }

    /// The links in a directory, which are asked for once.
    pub(super) fn take(&mut self, directory: &bstr::BStr) -> HashMap<BString, Entry> {
        self.links.remove(directory).unwrap_or_default()
    }

    /// Those that were not shown, with their whole names.
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
    /// What the source of a mirror hides beneath a directory.
    pub(super) fn hidden_at_source(
        &self,
        from: &mut Side,
        source: &Place,
        directory: &bstr::BStr,
        hidden: &mut Hidden,
        synced: &mut Synced,
    ) -> Result<(), RemoteError> {
        let options = self.ctx.options();
        // Those that lead nowhere are kept, or told.
        if options.preserve.links || options.delete || !options.skip_dangling {
            let found = from.ask(Some(&reopen(self.ctx)), &mut |side| hidden.add(side, source, directory))?;
            synced.links_unknown |= hidden.incomplete;
            synced.links.extend(found);
        }
        Ok(())
    }

    /// What its destination hides beneath a directory: it is to be compared, and removed, as what is shown.
    pub(super) fn hidden_there(
        &mut self,
        destination: &Place,
        directory: &bstr::BStr,
        hidden: &mut Hidden,
    ) -> Result<(), RemoteError> {
        let options = self.ctx.options();
        if options.preserve.links || options.delete {
            self.ask(destination, true, &mut |side| hidden.add(side, destination, directory))?;
        }
        Ok(())
    }
}
