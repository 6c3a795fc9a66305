//! The root of a tree: whether it may be copied to its destination, and what has to be made first.

use super::*;

impl Plan<'_> {
    /// Plans a directory; `into`: it goes into the destination, by its own name.
    pub(super) fn directory(
        &mut self,
        ends: &Ends,
        entry: &Entry,
        there: Option<&Entry>,
        into: bool,
    ) -> Result<(), RemoteError> {
        let source = &ends.source;
        let options = self.ctx.options();
        if !options.selection.recursive {
            let what = format!("{}: is a directory (copy it with -r)", source.display());
            return Err(RemoteError::Usage(what));
        }
        if ends.window.is_some() {
            let what = format!("{}: is a directory: a part of it cannot be copied", source.display());
            return Err(RemoteError::Usage(what));
        }
        let name: BString = base_name(&source.path()).into();
        let named = into && !ends.contents && !name.is_empty();
        let destination = if named { ends.destination.join(&name)? } else { ends.destination.clone() };
        if matches!(destination, Place::Standard) {
            return Err(RemoteError::Usage("a tree cannot go to standard output".to_owned()));
        }
        if !self.stands_apart(source, &destination)? {
            return Ok(());
        }
        let measures = matches!(destination, Place::Measure(_));
        let exists = if named && !measures {
            self.stat(&destination, true, &mut Known::new())?.is_some()
        } else {
            there.is_some()
        };
        if options.dry_run && named && !exists && !measures {
            let (source, destination) = (source.display(), destination.display());
            let (modified, mode) = (entry.modified, entry.mode);
            self.ctx.report.event(Event::WouldMake { source, destination, modified, mode });
        }
        // An existing directory that gets the contents of another one is not its copy, so it keeps
        // its attributes.
        if (named || !exists) && !measures && !options.dry_run {
            let (time, mode) = self.preserved(entry);
            if (time, mode) != (None, None) {
                self.late.attributes.push((destination.clone(), time, mode));
            }
        }
        self.tree((source, entry.target.is_some()), &destination, exists, named)
    }

    /// Whether a directory is to be copied to a destination. It is refused if one is within the
    /// other, or if another directory goes to the same destination and that would lose data.
    /// `false`: this directory goes there already.
    fn stands_apart(&mut self, source: &Place, destination: &Place) -> Result<bool, RemoteError> {
        // The copy would find its own files, and copy them as well.
        if within(source, destination).is_some_and(|name| !self.filter.hides(name.as_bstr())) {
            let (source, destination) = (source.display(), destination.display());
            let what = format!("{source}: cannot be copied into itself ({destination})");
            return Err(RemoteError::Usage(what));
        }
        // The source would count as missing from the source, and be removed before it is copied.
        let mirror = self.ctx.options().selection.delete && self.ctx.options().selection.sync.is_some();
        if mirror && within(destination, source).is_some_and(|name| !self.filter.hides(name.as_bstr())) {
            let (source, destination) = (source.display(), destination.display());
            let what = format!("{source}: is in {destination}, where it would be removed (--delete)");
            return Err(RemoteError::Usage(what));
        }
        if matches!(destination, Place::Measure(_)) {
            return Ok(true);
        }
        match self.claim(source, destination) {
            Claim::First => Ok(true),
            Claim::Repeated => {
                self.ctx.report.left_out(source.display(), "named twice");
                Ok(false)
            }
            Claim::Taken if mirror => {
                let (source, destination) = (source.display(), destination.display());
                let what = format!(
                    "{source}: another directory of this copy goes to {destination} already, and \
                     each would remove the other's files (--delete)"
                );
                Err(RemoteError::Usage(what))
            }
            Claim::Taken => Ok(true),
        }
    }

    /// Makes the top of a tree if it is missing, or makes it writable.
    pub(super) fn make_top(
        &mut self,
        destination: &Place,
        exists: bool,
        named: bool,
    ) -> Result<(), RemoteError> {
        let ctx = self.ctx;
        let options = ctx.options();
        let discards = matches!(destination, Place::Measure(_));
        if named && exists {
            self.refuse_top(destination)?;
        }
        if !options.dry_run && !discards {
            if options.storage.create_directories {
                let unseen = options.storage.in_place;
                self.ask(destination, true, &mut |side| side.make_path(&destination.path(), unseen))?;
            } else if !exists && !named {
                return Err(crate::walk::missing(&destination.path()));
            } else if !exists {
                let top = [destination.path()];
                let made = self.ask(destination, true, &mut |side| side.make_directories(&top))?;
                made.into_iter().next().unwrap_or(Ok(true))?;
            }
        }
        if exists && !discards {
            let opened = self.open_up(destination, &[destination.path()])?;
            if !named {
                // It is not the source's copy, and keeps its own permissions.
                let own = opened.into_iter().map(|(_, mode)| (destination.clone(), None, Some(mode)));
                self.late.attributes.extend(own);
            }
        }
        Ok(())
    }
}

/// The name of a destination relative to the source, if it is within the source; empty if they are
/// the same.
fn within(source: &Place, destination: &Place) -> Option<BString> {
    match (source, destination) {
        (Place::Remote(one, from), Place::Remote(other, to)) if Arc::ptr_eq(one, other) => {
            let rest = to.strip_prefix(from.strip_suffix(b"/").unwrap_or(from))?;
            (rest.is_empty() || rest.starts_with(b"/")).then(|| rest.trim_with(|c| c == '/').into())
        }
        (Place::Local(_), Place::Local(_)) => {
            let real = |place: &Place| spelling::real(Path::new(OsStr::from_bytes(&place.path())));
            let name = real(destination)?.strip_prefix(real(source)?).ok()?.as_os_str().as_bytes().into();
            Some(name)
        }
        _ => None,
    }
}
