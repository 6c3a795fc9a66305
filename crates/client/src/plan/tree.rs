//! Plans whole trees.

use ropewalk_protocol::facts::INVALID_LINK;

use super::*;
use crate::model::entry::DANGLING;
use crate::side::is_shut;

impl Plan<'_> {
    /// Plans the contents of a directory, recursively. `linked`: the directory is the target of a
    /// symbolic link. `named`: the directory keeps its own name within the requested destination.
    pub(super) fn tree(
        &mut self,
        (source, linked): (&Place, bool),
        destination: &Place,
        exists: bool,
        named: bool,
    ) -> Result<(), RemoteError> {
        let ctx = self.ctx;
        let options = ctx.options();
        self.make_top(destination, exists, named)?;
        let mut gathered = Gathered::default();
        if !exists {
            gathered.new.insert(destination.path());
        }
        // The side is removed from the map during its listing, because the entries found need the
        // other sides.
        let key = self.key(source);
        self.side(source, false)?;
        let Some(mut from) = self.sides.remove(&(key.clone(), false)) else { return Ok(()) };
        let whole = options.selection.sync.is_none()
            && self.filter.listed().is_none()
            && matches!(&from, Side::Remote(session)
                if session.can.recursive && session.can.facts && !(linked && session.quirks.tree_listing_stays_at_link));
        if matches!(&from, Side::Remote(session) if session.quirks.may_make_links_absolute) {
            gathered.absolute =
                VirtualPath::parse(&source.path()).ok().filter(|_| source.path().starts_with(b"/"));
        }
        let at_server = matches!(source, Place::Remote(..)).then(|| source.clone());
        let mut synced = Synced { source: at_server, ..Synced::default() };
        if exists && options.selection.sync.is_some() {
            synced.waiting.insert(Vec::new());
            self.hidden_there(destination, b"".as_bstr(), &mut synced.hidden)?;
        }
        let result = if whole {
            self.whole_tree(&mut from, source, destination, &mut gathered)
        } else {
            let mut hidden = Hidden::default();
            let top = b"".as_bstr();
            self.hidden_at_source(&mut from, source, top, &mut hidden, &mut synced).and_then(|()| {
                from.walk_on(
                    &source.path(),
                    options.preserve.links,
                    &reopen(self.ctx),
                    &mut |side, entry| {
                        let name = entry.name.as_bstr();
                        hidden.is_shown(name);
                        if entry.is_directory() && entry.error.is_none() && hidden.misses(name) {
                            self.hidden_at_source(side, source, name, &mut hidden, &mut synced)?;
                        }
                        self.lent(source, side, |plan| {
                            plan.found(source, destination, entry, &mut gathered, &mut synced)
                        })
                    },
                )?;
                // One directory at a time. The other entries of that directory have been compared
                // already.
                let mut beside = Synced::default();
                for entry in hidden.rest() {
                    // If links are followed, the only known error of this one is that it is
                    // dangling.
                    let error = if options.preserve.links { entry.error } else { Some(DANGLING.to_owned()) };
                    let entry = Entry { error, ..entry };
                    let mut above = directory_of(entry.name.as_bstr());
                    while !above.is_empty() && self.filter.passes(above, true) {
                        above = directory_of(above);
                    }
                    // An excluded directory does not exist at the destination.
                    if !above.is_empty() {
                        continue;
                    }
                    let directory = directory_of(entry.name.as_bstr());
                    if beside.directory.as_ref().is_none_or(|current| current != directory) {
                        beside = Synced::default();
                        beside.waiting.insert(directory.to_vec());
                    }
                    self.found(source, destination, entry, &mut gathered, &mut beside)?;
                }
                Ok(())
            })
        };
        if result.as_ref().err().is_none_or(|e| !e.breaks_session()) {
            self.sides.insert((key, false), from);
        }
        let complete = result.is_ok() && !self.is_over();
        self.flush(destination, &mut gathered)?;
        if complete {
            self.tell_unseen(source, destination);
        }
        if complete && options.selection.delete && options.selection.sync.is_some() {
            // Directories that are empty at the source were not visited.
            for directory in std::mem::take(&mut synced.waiting) {
                synced.waiting.insert(directory.clone());
                self.visit(destination, directory.as_bstr(), &mut synced)?;
            }
            self.leave_directory(destination, &mut synced)?;
        }
        let mut attributes = std::mem::take(&mut gathered.attributes);
        attributes.retain(|(path, ..)| self.closing_link(destination, &mut gathered, path).is_none());
        attributes.retain(|(path, ..)| !gathered.refused.contains_key(path));
        self.late.attributes.extend(
            attributes.into_iter().map(|(path, time, mode)| (with_path(destination, path), time, mode)),
        );
        result
    }

    /// Handles an entry of a tree; its name is relative to `source`.
    pub(super) fn found(
        &mut self,
        source: &Place,
        destination: &Place,
        entry: Entry,
        gathered: &mut Gathered,
        synced: &mut Synced,
    ) -> Result<Step, RemoteError> {
        if self.is_over() {
            return Ok(Step::Stop);
        }
        let name = entry.name.clone();
        if let (true, Some(reason)) = (name.is_empty(), &entry.error) {
            // Some lines of the top's listing could not be parsed. So no entry at the destination
            // may count as missing from the source.
            if self.ctx.options().selection.sync.is_some() {
                self.visit(destination, b"".as_bstr(), synced)?;
            }
            synced.incomplete = true;
            let unlisted = RemoteError::Unlisted { path: source.path(), reason: reason.clone() };
            self.fail(source.display(), destination.display(), &unlisted);
            return Ok(Step::Over);
        }
        let (from, to) = (source.join(&name), destination_of(destination, &name));
        let (from, to) = match (from, to) {
            (Ok(from), Ok(to)) => (from, to),
            (Err(e), _) | (_, Err(e)) => {
                self.fail(name.to_string(), destination.display(), &e);
                return Ok(Step::Over);
            }
        };
        if entry.is_nameless() {
            // The real name is unknown. So no entry at the destination may count as missing from
            // the source.
            if self.ctx.options().selection.sync.is_some() {
                self.visit(destination, directory_of(name.as_bstr()), synced)?;
            }
            synced.incomplete = true;
            self.fail(from.display(), to.display(), &nameless(&from));
            return Ok(Step::Over);
        }
        self.saw(entry.name.as_bstr(), entry.error.is_some());
        // A partial file of another copy would replace our own part while its file arrives.
        if !entry.is_directory() && is_temporary_name(base_name(&name).as_bstr()) {
            self.ctx.report.left_out(from.display(), UNFINISHED);
            return Ok(Step::Over);
        }
        if !self.filter.passes(name.as_bstr(), entry.is_directory()) {
            if entry.is_directory() {
                self.saw(entry.name.as_bstr(), true);
            } else {
                self.ctx.report.left_out(from.display(), LEFT_OUT);
            }
            return Ok(Step::Over);
        }
        let ctx = self.ctx;
        let options = ctx.options();
        // Also for an entry that cannot be read at the source: its counterpart is not missing from
        // the source. (A directory whose listing failed is the one that the walk is in.)
        let within = synced.directory.as_ref() == Some(&name);
        let mut there = None;
        if options.selection.sync.is_some() && !within {
            if !self.visit(destination, directory_of(name.as_bstr()), synced)? {
                return Ok(Step::Over);
            }
            there = synced.names.remove(base_name(&name));
            if synced.told.is_none() && entry.error.is_none() && entry.target.is_none() {
                let plain = matches!(entry.kind, Kind::File | Kind::Directory);
                synced.told = plain.then(|| (name.clone(), entry.is_directory()));
            }
        }
        if !self.filter.fits(&entry) {
            self.ctx.report.left_out(from.display(), LEFT_OUT);
            return Ok(Step::Over);
        }
        if entry.leads_nowhere() {
            synced.incomplete |= !self.dangling(&from, &to);
            synced.waiting.remove(name.as_slice());
            return Ok(Step::Over);
        }
        // A server may wrongly report this error for a file, and the transfer will show whether it
        // is readable. GCT reports entries listed beside a dangling link as dangling. A link that
        // is preserved need not be read.
        let wrong = |error: &&String| entry.kind != Kind::File && *error != INVALID_LINK;
        if let Some(error) = entry.error.as_ref().filter(wrong) {
            let unlisted = RemoteError::Unlisted { path: from.path(), reason: error.clone() };
            self.fail(from.display(), to.display(), &unlisted);
            synced.incomplete = true;
            synced.waiting.remove(name.as_slice());
            return Ok(Step::Over);
        }
        self.note_twins(name.as_bstr(), &from, &to, gathered)?;
        if entry.is_directory() {
            return self.found_directory((from, to), &entry, there, gathered, synced);
        }
        self.found_file((from, to), &entry, there, gathered)?;
        if gathered.files.len() >= GATHERED || gathered.directories.len() >= GATHERED {
            self.flush(destination, gathered)?;
        }
        Ok(Step::Over)
    }

    /// Records a name that was found. `whole`: its contents will not be listed, and are not missed.
    fn saw(&mut self, name: &bstr::BStr, whole: bool) {
        if self.unseen.is_empty() {
            return;
        }
        self.unseen.remove(name.as_bytes());
        if whole {
            let within = |listed: &BString| {
                listed.strip_prefix(name.as_bytes()).is_some_and(|rest| rest.starts_with(b"/"))
            };
            self.unseen.retain(|listed| !within(listed));
        }
    }

    /// Reports entries of the user's list that do not exist.
    fn tell_unseen(&mut self, source: &Place, destination: &Place) {
        let mut unseen: Vec<BString> = self.unseen.drain().filter(|name| !name.is_empty()).collect();
        unseen.sort_unstable();
        for name in unseen {
            match source.join(&name).and_then(|from| Ok((from, destination_of(destination, &name)?))) {
                Ok((from, to)) => {
                    let missing = crate::walk::missing(&from.path());
                    self.fail(from.display(), to.display(), &missing);
                }
                Err(e) => self.fail(name.to_string(), destination.display(), &e),
            }
        }
    }

    /// The destination's entry with links followed, as far as the server reports it.
    pub(super) fn look(&mut self, place: &Place) -> Result<Option<Entry>, RemoteError> {
        match self.stat(place, true, &mut Known::new()) {
            Err(e) if e.breaks_session() => Err(e),
            there => Ok(there.ok().flatten()),
        }
    }

    /// `there`: the destination's entry of that name, if it was requested.
    fn found_directory(
        &mut self,
        (from, to): (Place, Place),
        entry: &Entry,
        mut there: Option<Entry>,
        gathered: &mut Gathered,
        synced: &mut Synced,
    ) -> Result<Step, RemoteError> {
        let ctx = self.ctx;
        let options = ctx.options();
        let name = &entry.name;
        if there.as_ref().is_some_and(|there| there.kind == Kind::Symlink)
            && let Some(leads_to) = self.look(&to)?
        {
            let target = there.and_then(|link| link.target);
            there = Some(Entry { target, ..leads_to });
        }
        let stands_in_the_way = |there: &Entry| {
            // If two names lead to one directory, entries missing from one of them would be removed
            // from the other.
            let link = there.target.is_some() && (options.selection.delete || options.preserve.links);
            link || !there.is_directory()
        };
        if there.as_ref().is_some_and(stands_in_the_way) {
            if !options.selection.delete {
                let e = RemoteError::Usage(format!("{}: is not a directory", to.display()));
                self.fail(from.display(), to.display(), &e);
                return Ok(Step::Over);
            }
            if let Err(e) = self.remove(&to, false) {
                if e.breaks_session() {
                    return Err(e);
                }
                self.fail(String::new(), to.display(), &e);
                return Ok(Step::Over);
            }
            there = None;
        }
        if let Some(there) = &there {
            synced.waiting.insert(name.to_vec());
            if there.mode.is_some_and(is_shut) {
                self.open_up(&to, &[to.path()])?;
            }
        }
        // Without `sync` the destination has not been inspected.
        let unseen = options.dry_run && options.selection.sync.is_none() && !matches!(to, Place::Measure(_));
        if options.dry_run && there.is_none() && !(unseen && self.look(&to)?.is_some()) {
            let (source, destination) = (from.display(), to.display());
            let (modified, mode) = (entry.modified, entry.mode);
            self.ctx.report.event(Event::WouldMake { source, destination, modified, mode });
        }
        if there.is_none() && !matches!(to, Place::Measure(_)) {
            gathered.directories.push(to.path());
        }
        let (time, mode) = self.preserved(entry);
        if !options.dry_run && (time, mode) != (None, None) {
            gathered.attributes.push((to.path(), time, mode));
        }
        Ok(Step::Into)
    }

    fn found_file(
        &mut self,
        (from, to): (Place, Place),
        entry: &Entry,
        there: Option<Entry>,
        gathered: &mut Gathered,
    ) -> Result<(), RemoteError> {
        if !matches!(entry.kind, Kind::File | Kind::Symlink) {
            self.ctx.report.left_out(from.display(), "neither a file nor a directory");
            return Ok(());
        }
        if self.merging && !matches!(to, Place::Measure(_)) {
            match self.claim(&from, &to) {
                Claim::First => {}
                Claim::Repeated => {
                    self.ctx.report.left_out(from.display(), "named twice");
                    return Ok(());
                }
                Claim::Taken => {
                    self.fail(from.display(), to.display(), &claimed_already(&from, &to));
                    return Ok(());
                }
            }
        }
        let options = self.ctx.options();
        // A write in place would follow a link.
        let unseen = options.storage.in_place && options.preserve.links && options.selection.sync.is_none();
        let there = match &to {
            Place::Remote(..) if unseen => self.look(&to)?,
            _ => there,
        };
        let mut task = self.task(from, to, None);
        task.found = true;
        fill(&mut task, entry);
        if let Some((root, target)) = gathered.absolute.as_ref().zip(task.link.as_ref())
            && let Some(within) = kept_within(root, &task.source.path(), target)
        {
            task.link = Some(within.into());
        }
        if self.ctx.options().selection.sync.is_some() && there.is_none() {
            task.there = There::Nothing;
        }
        let (source_name, destination_name) = (task.source.display(), task.destination.display());
        match self.wanted(task, there.as_ref(), Some(&entry.name)) {
            Ok(Some(task)) => gathered.files.push(task),
            Ok(None) => {}
            Err(e) if e.breaks_session() => return Err(e),
            Err(e) => self.fail(source_name, destination_name, &e),
        }
        Ok(())
    }

    /// Handles a link that is to be followed and is dangling. `true`: it is skipped, as the options
    /// ask.
    pub(super) fn dangling(&mut self, from: &Place, to: &Place) -> bool {
        let skips = self.ctx.options().selection.skip_dangling;
        if skips {
            self.ctx.report.left_out(from.display(), DANGLING);
        } else {
            let error = RemoteError::Usage(format!("{}: {DANGLING}", from.display()));
            self.fail(from.display(), to.display(), &error);
        }
        skips
    }

    /// Enters a directory: lists its counterpart, and finishes the previous directory. `false`: the
    /// counterpart cannot be listed, so that nothing in it can be compared. This has been reported.
    pub(super) fn visit(
        &mut self,
        destination: &Place,
        directory: &bstr::BStr,
        synced: &mut Synced,
    ) -> Result<bool, RemoteError> {
        if synced.directory.as_ref().is_some_and(|current| current.as_bstr() == directory) {
            return Ok(!synced.unknown);
        }
        self.leave_directory(destination, synced)?;
        synced.directory = Some(directory.into());
        (synced.incomplete, synced.unknown, synced.told) = (false, false, None);
        if !synced.waiting.remove(directory.as_bytes()) {
            // It is new: there is nothing to compare with.
            return Ok(true);
        }
        let path =
            if directory.is_empty() { destination.path() } else { join(&destination.path(), directory) };
        if synced.hidden.misses(directory) {
            self.hidden_there(destination, directory, &mut synced.hidden)?;
        }
        let hidden = synced.hidden.take(directory);
        let names = &mut synced.names;
        let listed = self.ask(destination, true, &mut |side| {
            names.clone_from(&hidden);
            side.list(&path, &mut |entry| {
                // The reported attributes may belong to another file.
                if !entry.is_nameless() {
                    names.insert(entry.name.clone(), entry);
                }
                Ok(true)
            })
        });
        match listed {
            Err(e) if e.breaks_session() => Err(e),
            Err(e) if !crate::side::is_missing(&e) && !self.ctx.options().dry_run => {
                self.fail(String::new(), with_path(destination, path).display(), &e);
                (synced.incomplete, synced.unknown) = (true, true);
                synced.names.clear();
                Ok(false)
            }
            _ => Ok(true),
        }
    }
}

pub(super) fn nameless(from: &Place) -> RemoteError {
    RemoteError::Unlisted { path: from.path(), reason: "its name contains an end of line".to_owned() }
}
