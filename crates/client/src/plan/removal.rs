//! Removals at the destination (`delete`).

use super::*;
use crate::side::is_missing;

impl Plan<'_> {
    /// Removes the entries of the current directory that the source does not have.
    pub(super) fn leave_directory(
        &mut self,
        destination: &Place,
        synced: &mut Synced,
    ) -> Result<(), RemoteError> {
        let names = std::mem::take(&mut synced.names);
        if let (Some(directory), true, true, false) =
            (&synced.directory, self.ctx.options().selection.delete, synced.incomplete, names.is_empty())
        {
            let place =
                if directory.is_empty() { destination.clone() } else { destination.join(directory)? };
            self.ctx.report.warn_once(format!(
                "{}: nothing is removed here, because the source's entries are not all known (--delete)",
                place.display()
            ));
        }
        let (Some(directory), true, false) =
            (&synced.directory, self.ctx.options().selection.delete, synced.incomplete)
        else {
            return Ok(());
        };
        let mut unwanted = Vec::new();
        for (name, entry) in names {
            // Partial files of running or interrupted transfers stay: `clean` removes abandoned
            // ones.
            if is_temporary_name(name.as_bstr()) {
                continue;
            }
            let relative = if directory.is_empty() { name } else { join(directory, &name) };
            let tree = entry.is_directory() && entry.target.is_none();
            // A link does not replace a directory.
            let replaced = tree && self.ctx.options().preserve.links;
            if synced.links.contains(&relative)
                && !(replaced && self.filter.passes(relative.as_bstr(), false))
                || synced.links_unknown && entry.target.is_some()
            {
                continue;
            }
            if !self.filter.passes(relative.as_bstr(), entry.is_directory()) || !self.filter.fits(&entry) {
                continue;
            }
            unwanted.push((relative, tree));
        }
        if self.is_doubtful(destination, &unwanted, synced)? {
            return Ok(());
        }
        for (relative, tree) in unwanted {
            let place = destination.join(&relative)?;
            let removed = if tree && !self.filter.is_empty() {
                self.remove_what_passes(&place, &relative).map(drop)
            } else {
                self.remove(&place, tree)
            };
            if let Err(e) = removed {
                if e.breaks_session() {
                    return Err(e);
                }
                self.fail(String::new(), place.display(), &e);
            }
        }
        Ok(())
    }

    /// Whether the source's server has an entry that its listing of the directory omitted, or lacks
    /// an entry that it contained. Then its listings are not reliable, and no more entries are
    /// removed.
    fn is_doubtful(
        &mut self,
        destination: &Place,
        unwanted: &[(BString, bool)],
        synced: &mut Synced,
    ) -> Result<bool, RemoteError> {
        let (Some(source), Some(directory), false) =
            (&synced.source, &synced.directory, unwanted.is_empty() || synced.distrusted)
        else {
            return Ok(synced.distrusted);
        };
        let told = synced.told.iter().map(|(name, directory)| (name, *directory, true));
        let names = told.chain(unwanted.iter().map(|(name, directory)| (name, *directory, false)));
        let names: Vec<(&BString, bool, bool)> = names.collect();
        let mut doubt = None;
        for names in names.chunks(BATCH) {
            let asked: Vec<_> =
                names.iter().map(|(name, directory, _)| (join(&source.path(), name), *directory)).collect();
            let have = self.ask(source, false, &mut |side| match side {
                Side::Remote(session) => session.have(&asked),
                Side::Local(_) => Ok(Vec::new()),
            })?;
            doubt = names.iter().zip(have).find_map(|((name, _, told), have)| match (told, have) {
                (true, Some(false)) => Some(format!("it contains {name}, which does not exist")),
                (false, Some(true)) => Some(format!("it omits {name}, which exists")),
                (false, None) => Some(format!("it is not known whether {name} exists")),
                _ => None,
            });
            if doubt.is_some() {
                break;
            }
        }
        let Some(reason) = doubt else { return Ok(false) };
        let reason = format!("{reason}; nothing is removed (--delete)");
        let at = |place: &Place| if directory.is_empty() { Ok(place.clone()) } else { place.join(directory) };
        let (from, to) = (at(source)?, at(destination)?);
        self.fail(from.display(), to.display(), &RemoteError::Mistold { path: from.path(), reason });
        synced.distrusted = true;
        Ok(true)
    }

    pub(super) fn remove(&mut self, place: &Place, tree: bool) -> Result<(), RemoteError> {
        if self.ctx.options().dry_run {
            self.ctx.report.event(Event::WouldRemove { path: place.display() });
            return Ok(());
        }
        let path = place.path();
        self.removed(place, &mut |side| {
            if tree { side.remove_shut_tree(&path) } else { side.remove(&path, false) }
        })
    }

    /// Reports a removed entry.
    fn removed(
        &mut self,
        place: &Place,
        remove: &mut dyn FnMut(&mut Side) -> Result<(), RemoteError>,
    ) -> Result<(), RemoteError> {
        let mut broke = false;
        self.ask(place, true, &mut |side| match remove(side) {
            // The session that broke has removed it.
            Err(e) if broke && is_missing(&e) => Ok(()),
            removed => {
                broke = removed.is_err();
                removed
            }
        })?;
        self.ctx.report.removed(place.display());
        Ok(())
    }

    /// Removes a tree, except for the entries that a filter excludes and their directories.
    /// `relative`: the name that the filter uses. Returns whether everything was removed.
    pub(super) fn remove_what_passes(
        &mut self,
        top: &Place,
        relative: &BString,
    ) -> Result<bool, RemoteError> {
        // Parents before children, with whether it is a directory.
        let mut found: Vec<(BString, bool)> = vec![(BString::default(), true)];
        let mut kept: HashSet<BString> = HashSet::new();
        let mut failures = Vec::new();
        self.side(top, true)?;
        let filter = &self.filter;
        let Some(side) = self.sides.get_mut(&(self.key(top), true)) else {
            return Err(RemoteError::Cancelled);
        };
        let reopened = reopen(self.ctx);
        let path = top.path();
        let listed = side.ask(Some(&reopened), &mut |side| {
            found.truncate(1);
            kept.clear();
            failures.clear();
            side.walk(&path, true, &mut |_, entry| {
                let directory = entry.is_directory() && entry.target.is_none();
                // Dangling links can be removed; unreadable directories cannot.
                if let (true, Some(error)) = (directory, entry.error.clone()) {
                    keep(&mut kept, entry.name.as_bstr());
                    failures.push((entry.name, error));
                    return Ok(Step::Over);
                }
                let passes =
                    filter.passes(join(relative, &entry.name).as_bstr(), directory) && filter.fits(&entry);
                if entry.is_nameless() || !passes {
                    keep(&mut kept, directory_of(entry.name.as_bstr()));
                    return Ok(Step::Over);
                }
                found.push((entry.name, directory));
                Ok(Step::Into)
            })
        });
        listed.inspect_err(|e| self.forget(top, true, e))?;
        if kept.is_empty() {
            // All at once, including entries that no listing contains.
            return self.remove(top, true).map(|()| true);
        }
        for (name, reason) in failures {
            let place = top.join(&name)?;
            let unlisted = RemoteError::Unlisted { path: place.path(), reason };
            self.fail(String::new(), place.display(), &unlisted);
        }
        for (name, directory) in found.into_iter().rev() {
            if kept.contains(&name) {
                continue;
            }
            let place = if name.is_empty() { top.clone() } else { top.join(&name)? };
            let removed = match directory && !self.ctx.options().dry_run {
                true => {
                    let path = place.path();
                    self.removed(&place, &mut |side| side.remove_directory(&path))
                }
                false => self.remove(&place, false),
            };
            match removed {
                Err(e) if e.breaks_session() => return Err(e),
                Err(e) => {
                    keep(&mut kept, directory_of(name.as_bstr()));
                    self.fail(String::new(), place.display(), &e);
                }
                Ok(()) => {}
            }
        }
        Ok(false)
    }
}

/// Records that a directory and its ancestors stay.
fn keep(kept: &mut HashSet<BString>, directory: &bstr::BStr) {
    let mut directory = directory;
    while kept.insert(directory.into()) && !directory.is_empty() {
        directory = directory_of(directory);
    }
}
