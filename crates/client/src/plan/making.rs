//! Makes the directories of a tree at its destination: before their contents, and never through a
//! link that is to be kept.

use super::*;
use crate::side::{OWNERS, is_shut};

/// Why nothing is sent to a directory.
const CLOSED: &str = "it or a directory above it is a symbolic link, and nothing is copied through \
                      one if links are preserved";
/// Why a file is not sent.
const THROUGH_LINK: &str = "its directory is a symbolic link";
/// Why nothing is written through a local link.
const LEADS_OUT: &str = "a symbolic link that leads out of the destination: nothing is written \
                         through it (except with --keep-dirlinks)";
const KEPT_LINK: &str = "is a symbolic link: nothing is copied through it if links are preserved";
const NOT_MADE: &str = "its directory could not be made";

impl Plan<'_> {
    pub(super) fn is_link(&mut self, place: &Place) -> Result<bool, RemoteError> {
        Ok(match place {
            Place::Local(path) => {
                self.ctx.store.stat(path, false).is_ok_and(|there| there.kind == Kind::Symlink)
            }
            Place::Remote(..) => {
                self.stat(place, true, &mut Known::new())?.is_some_and(|there| there.target.is_some())
            }
            Place::Standard | Place::Measure(_) => false,
        })
    }

    /// Finds links that stand for directories at a server: if links are preserved, nothing is
    /// copied through one. A directory that this run has made contains none.
    fn refuse_links(
        &mut self,
        destination: &Place,
        gathered: &mut Gathered,
        directories: &[BString],
    ) -> Result<(), RemoteError> {
        let is_old =
            |path: &&BString| !parent(path).is_some_and(|above| gathered.new.contains(above.as_bstr()));
        let old: Vec<BString> = directories.iter().filter(is_old).cloned().collect();
        if !self.ctx.options().preserve.links || !matches!(destination, Place::Remote(..)) || old.is_empty() {
            return Ok(());
        }
        let there = self.ask(destination, true, &mut |side| side.stat_many(&old))?;
        for (path, there) in old.iter().zip(there) {
            let is_link = there.is_some_and(|there| there.is_directory() && there.target.is_some());
            if is_link && !gathered.is_refused(path) {
                gathered.refused.insert(path.clone(), (FailureKind::Other, THROUGH_LINK));
                let path = with_path(destination, path.clone()).display();
                self.fail(String::new(), path, &RemoteError::Usage(CLOSED.to_owned()));
            }
        }
        Ok(())
    }

    /// The link within the destination that blocks a local directory: the directory is that link,
    /// or is beneath it. If links are preserved, any link blocks: an earlier copy may have made it,
    /// so that the author of the source decides its target. Otherwise a link that leads out of the
    /// destination blocks. The destination itself may be a link, because the user has named it.
    pub(super) fn closing_link(
        &self,
        destination: &Place,
        gathered: &mut Gathered,
        directory: &[u8],
    ) -> Option<BString> {
        let Place::Local(top) = destination else { return None };
        if directory.len() <= top.as_bytes().len() || gathered.open.contains(directory) {
            return None;
        }
        let above = parent(directory).and_then(|above| self.closing_link(destination, gathered, above));
        let link = above.or_else(|| {
            let path = VirtualPath::parse(directory).ok()?;
            self.is_closed_link(top, &path).then(|| directory.into())
        });
        if link.is_none() {
            if gathered.open.len() >= REMEMBERED {
                gathered.open.clear();
            }
            gathered.open.insert(directory.into());
        }
        link
    }

    /// Whether `path`, beneath `top`, is a link through which nothing may be written.
    fn is_closed_link(&self, top: &VirtualPath, path: &VirtualPath) -> bool {
        let (options, store) = (self.ctx.options(), &self.ctx.store);
        if !store.stat(path, false).is_ok_and(|there| there.kind == Kind::Symlink) {
            return false;
        }
        let leads_out = || match (store.real_path(top), store.real_path(path)) {
            (Ok(top), Ok(led)) => !led.starts_with(&top),
            _ => true,
        };
        options.preserve.links || !options.storage.keep_dirlinks && leads_out()
    }

    /// Refuses the top of a tree, whose name comes from the source, if it is a link through which
    /// nothing may be written.
    pub(super) fn refuse_top(&mut self, destination: &Place) -> Result<(), RemoteError> {
        let what = match destination {
            Place::Local(path) => {
                let above = path.parent().unwrap_or_else(VirtualPath::root);
                if !self.is_closed_link(&above, path) {
                    return Ok(());
                }
                if self.ctx.options().preserve.links { KEPT_LINK } else { LEADS_OUT }
            }
            _ if self.ctx.options().preserve.links && self.is_link(destination)? => KEPT_LINK,
            _ => return Ok(()),
        };
        Err(RemoteError::Usage(format!("{}: {what}", destination.display())))
    }

    /// Why nothing is written beneath a link.
    fn closed(&self, destination: &Place, link: &BString, of_directory: bool) -> RemoteError {
        let why = match (self.ctx.options().preserve.links, of_directory) {
            (false, _) => format!("{}: {LEADS_OUT}", with_path(destination, link.clone()).display()),
            (true, true) => CLOSED.to_owned(),
            (true, false) => THROUGH_LINK.to_owned(),
        };
        RemoteError::Usage(why)
    }

    /// Makes read-only directories writable for their owner until the copy is complete; then they
    /// get the permissions of the source. Returns those that were changed, with their old modes.
    pub(super) fn open_up(
        &mut self,
        destination: &Place,
        directories: &[BString],
    ) -> Result<Vec<(BString, u32)>, RemoteError> {
        let options = self.ctx.options();
        if !options.preserve.modes || options.dry_run || directories.is_empty() {
            return Ok(Vec::new());
        }
        let mut modes = Vec::new();
        self.ask(destination, true, &mut |side| {
            for (path, there) in directories.iter().zip(side.stat_many(directories)?) {
                let Some(mode) = there.and_then(|there| there.mode).filter(|mode| is_shut(*mode)) else {
                    continue;
                };
                match side.set_attributes(path, None, Some(mode | OWNERS)) {
                    Err(e) if e.breaks_session() => return Err(e),
                    // The attempt to write there will report the error.
                    Err(_) => {}
                    Ok(()) => modes.push((path.clone(), mode)),
                }
            }
            Ok(())
        })?;
        if let Place::Local(_) = destination {
            let here = |(path, mode): &(BString, u32)| Some((VirtualPath::parse(path).ok()?, *mode));
            self.late.opened.extend(modes.iter().filter_map(here));
        }
        Ok(modes)
    }

    /// Makes the directories that were found.
    fn make(
        &mut self,
        destination: &Place,
        gathered: &mut Gathered,
        directories: &[BString],
    ) -> Result<(), RemoteError> {
        // Local directories are made one by one, because nothing is made beneath a blocked link.
        let alone = matches!(destination, Place::Local(_));
        self.refuse_links(destination, gathered, directories)?;
        let mut sought = Vec::with_capacity(directories.len());
        for path in directories {
            if !gathered.is_refused(path) {
                sought.push(path.clone());
            }
        }
        let directories = &sought[..];
        for directories in directories.chunks(if alone { 1 } else { directories.len().max(1) }) {
            if alone && let Some(link) = self.closing_link(destination, gathered, &directories[0]) {
                let path = with_path(destination, directories[0].clone()).display();
                self.fail(String::new(), path, &self.closed(destination, &link, true));
                continue;
            }
            let mut results = self.ask(destination, true, &mut |side| side.make_directories(directories))?;
            let was_there = directories.iter().zip(&results).filter(|(_, made)| matches!(made, Ok(false)));
            let was_there: Vec<BString> = was_there.map(|(path, _)| path.clone()).collect();
            if !self.open_up(destination, &was_there)?.is_empty() {
                for (path, result) in directories.iter().zip(&mut results) {
                    if result.as_ref().is_err_and(|e| e.kind() == FailureKind::Permission) {
                        let alone = [path.clone()];
                        let again = self.ask(destination, true, &mut |side| side.make_directories(&alone))?;
                        *result = again.into_iter().next().unwrap_or(Ok(true));
                    }
                }
            }
            for (path, result) in directories.iter().zip(results) {
                match result {
                    Ok(true) => {
                        self.ctx.report.directory_made();
                        if gathered.new.len() >= REMEMBERED {
                            gathered.new.clear();
                        }
                        gathered.new.insert(path.clone());
                    }
                    Ok(false) => {}
                    // A directory above it has been reported already.
                    Err(_) if gathered.is_refused(path) => {}
                    Err(e) => {
                        // A user who may write files there may be refused the information. The
                        // transfers will show whether the directory exists.
                        let unseen =
                            self.ctx.options().storage.in_place && e.kind() == FailureKind::Permission;
                        if !unseen {
                            gathered.refused.insert(path.clone(), (e.kind(), NOT_MADE));
                        }
                        self.fail(String::new(), with_path(destination, path.clone()).display(), &e);
                    }
                }
            }
        }
        Ok(())
    }

    /// Makes the directories that were found, and queues the files in them.
    pub(super) fn flush(&mut self, destination: &Place, gathered: &mut Gathered) -> Result<(), RemoteError> {
        // The author of the source could otherwise redirect the files of a directory to the target
        // of a link.
        let options = self.ctx.options();
        // A dry run leaves links in place that the copy would have removed.
        let links = options.dry_run && options.selection.delete;
        let directories = std::mem::take(&mut gathered.directories);
        if !self.ctx.options().dry_run
            && let Err(e) = self.make(destination, gathered, &directories)
        {
            // Files are not queued before their directories exist.
            gathered.directories = directories;
            return Err(e);
        }
        let mut files = std::mem::take(&mut gathered.files);
        let ready = self.learn_times(&mut files);
        if let Err(e) = ready.and_then(|()| self.leave_out_finished(destination, &mut files)) {
            gathered.files = files;
            return Err(e);
        }
        for mut task in files {
            let path = task.destination.path();
            if parent(&path).is_some_and(|above| gathered.new.contains(above.as_bstr())) {
                task.there = There::Nothing;
            }
            let above = parent(&path).filter(|_| !links);
            if let Some(link) = above.and_then(|above| self.closing_link(destination, gathered, above)) {
                let closed = self.closed(destination, &link, false);
                self.fail(task.source.display(), task.destination.display(), &closed);
            } else if let Some((kind, why)) =
                parent(&path).and_then(|above| gathered.refused.get(above.as_bstr()))
            {
                let lost = RemoteError::Lost { kind: *kind, reason: (*why).to_owned() };
                self.fail(task.source.display(), task.destination.display(), &lost);
            } else {
                self.push(task);
            }
        }
        Ok(())
    }
}

impl Gathered {
    /// Whether a directory or one above it is refused.
    fn is_refused(&mut self, directory: &BString) -> bool {
        if self.refused.contains_key(directory) {
            return true;
        }
        let above = parent(directory).and_then(|above| self.refused.get(above.as_bstr())).copied();
        if let Some(why) = above {
            self.refused.insert(directory.clone(), why);
        }
        above.is_some()
    }
}
