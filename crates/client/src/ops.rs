//! Small operations of a session: attributes, names, listings.

use std::io::{self, Seek, Write};
use std::ops::ControlFlow;

use bstr::{BString, ByteSlice};
use ropewalk_engine::Progress;
use ropewalk_protocol::client::answer;
use ropewalk_protocol::command::{Command, Restart, Retrieval};
use ropewalk_protocol::error_class::ErrorClass;
use ropewalk_protocol::opts::{Options, RecursionOptions};
use ropewalk_protocol::path::VirtualPath;
use ropewalk_protocol::range::RangeSet;
use ropewalk_protocol::reply::Reply;
use ropewalk_protocol::server::{Mode, Window as Part};
use ropewalk_protocol::site::SiteCommand;
use ropewalk_storage::Kind;
use ropewalk_storage::checksum::Algorithm;

use crate::control::Answer;
use crate::entry::{Line, from_facts, from_long, from_status};
use crate::error::is_unknown_command;
use crate::error::reply_kind;
use crate::landing::{STRAY, part_apart};
use crate::listing::Listing;
use crate::place::{base_name, parent};
use crate::session::Session;
use crate::task::{Task, one_file};
use crate::watch::Watch;
use crate::{Amount, Entry, FailureKind, Preserve, RemoteError};

/// Listings up to so many bytes are kept in memory.
const LISTING_IN_MEMORY: usize = 4 << 20;

/// Directories within directories that are removed one by one, at most: a server may tell of any number.
const LEVELS: usize = 500;

/// Permission bit.
const OWNER_WRITES: u32 = 0o200;

impl Session<'_> {
    /// The attributes of a file or directory; links are followed. Its name is the one that was asked for.
    pub(crate) fn stat(&mut self, path: &[u8]) -> Result<Entry, RemoteError> {
        if self.can.facts {
            let reply = self.call(&Command::Mlst(Some(path.into())))?;
            let entry = from_status(&reply).ok_or_else(|| self.nonsense("MLST", &reply))?;
            return Ok(Entry { name: base_name(path).into(), ..entry });
        }
        let missing = match self.size(path) {
            Ok(size) => {
                let modified = self.control.call(&Command::Mdtm(path.into()))?;
                let modified = answer::modified(&modified);
                return Ok(Entry { size: Some(size), modified, ..Entry::new(base_name(path), Kind::File) });
            }
            Err(e) if e.breaks_session() => return Err(e),
            Err(e) => e,
        };
        // What has no size may be a directory.
        let here = self.call(&Command::Pwd)?;
        let entered = self.control.call(&Command::Cwd(path.into()))?;
        if entered.is_failure() {
            // Many servers have one code for all that is wrong with a name; some say what it is.
            let nothing = matches!(&missing, RemoteError::Refused { reply, .. } if reply.code() == 550);
            let denied =
                missing.kind() == FailureKind::Permission && reply_kind(&entered) == FailureKind::Permission;
            return Err(if nothing && entered.code() == 550 && !denied {
                let reason = format!("{}: no such file or directory, or not for this user", path.as_bstr());
                RemoteError::Lost { kind: FailureKind::NotFound, reason }
            } else {
                missing
            });
        }
        if let Some(back) = answer::path(&here) {
            self.call(&Command::Cwd(back))?;
        }
        Ok(Entry::new(base_name(path), Kind::Directory))
    }

    /// As [`Session::stat`] for many paths in one go, where the server has MLST.
    pub(crate) fn stat_many(
        &mut self,
        paths: &[BString],
    ) -> Result<Vec<Result<Entry, RemoteError>>, RemoteError> {
        if !self.can.facts {
            return Ok(paths.iter().map(|path| self.stat(path)).collect());
        }
        let commands: Vec<Command> = paths.iter().map(|path| Command::Mlst(Some(path.clone()))).collect();
        let mut entries = Vec::with_capacity(paths.len());
        for (reply, path) in self.calls(&commands)?.into_iter().zip(paths) {
            entries.push(reply.and_then(|reply| {
                let entry = from_status(&reply).ok_or_else(|| self.nonsense("MLST", &reply))?;
                Ok(Entry { name: base_name(path).into(), ..entry })
            }));
        }
        Ok(entries)
    }

    pub(crate) fn size(&mut self, path: &[u8]) -> Result<u64, RemoteError> {
        let reply = self.call(&Command::Size(path.into()))?;
        answer::size(&reply).ok_or_else(|| self.nonsense("SIZE", &reply))
    }

    pub(crate) fn checksum(
        &mut self,
        path: &[u8],
        algorithm: Algorithm,
        window: Amount,
    ) -> Result<String, RemoteError> {
        let reply = self.call(&Command::Cksm {
            algorithm,
            offset: window.map_or(0, |w| w.offset),
            length: window.and_then(|w| w.length),
            path: path.into(),
        })?;
        answer::checksum(&reply).ok_or_else(|| self.nonsense("CKSM", &reply))
    }

    /// What an interrupted upload has left (our extension).
    pub(crate) fn ranges(&mut self, path: &[u8]) -> Result<RangeSet, RemoteError> {
        let reply = self.control.call(&Command::Site(SiteCommand::Ranges(path.into())))?;
        if reply.is_failure() {
            let refused = self.refused("SITE RANGES", reply);
            // A session that broke may still hold the part. That is not to say that nothing is there, else it would be
            // begun anew, and lost, a moment later.
            return if refused.is_busy() { Err(refused) } else { Ok(RangeSet::new()) };
        }
        answer::ranges(&reply).ok_or_else(|| self.nonsense("SITE RANGES", &reply))
    }

    /// What an interrupted upload to `part` has left. `known` is what markers told of it; servers of our kind tell
    /// themselves. In MODE S a file grows from its beginning, so that its size tells all; GridFTP servers may have
    /// written it in MODE E before, with holes.
    pub(crate) fn received(
        &mut self,
        part: &[u8],
        known: RangeSet,
        size: Option<u64>,
    ) -> Result<RangeSet, RemoteError> {
        if self.can.ranges {
            return self.ranges(part);
        }
        let there = match self.size(part) {
            Ok(there) => there,
            Err(e) if e.breaks_session() => return Err(e),
            Err(_) => return Ok(RangeSet::new()),
        };
        if !self.can.extended {
            return Ok(RangeSet::from_range(0..there.min(size.unwrap_or_default())));
        }
        // Too short for what the markers told: it is another file.
        let mut known = if known.end() <= there { known } else { RangeSet::new() };
        known.remove(0..STRAY);
        Ok(known)
    }

    /// The beginning of a file would be written by STOR, which leaves nothing of a longer one that is there.
    pub(crate) fn would_truncate(&self, task: &Task) -> bool {
        task.window.is_some() && task.offset() == 0 && !self.can.partial
    }

    /// Refuses what would replace a file of which only the beginning is to be written.
    pub(crate) fn spare_beginning(&mut self, task: &Task) -> Result<(), RemoteError> {
        if !self.would_truncate(task) {
            return Ok(());
        }
        match self.size(&task.destination.path()) {
            Ok(there) if task.length().is_none_or(|length| there > length) => {
                let peer = self.control.peer().to_owned();
                let what = format!("write the beginning of a file of {there} bytes that is there (no ESTO)");
                Err(RemoteError::Unsupported { peer, what })
            }
            Err(e) if e.breaks_session() => Err(e),
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// Refuses to copy a file of this server onto itself. `known`: by what its directory says of it, too.
    pub(crate) fn is_another_file(
        &mut self,
        task: &Task,
        destination: &mut Session<'_>,
        known: bool,
    ) -> Result<(), RemoteError> {
        if self.control.remote_addr() != destination.control.remote_addr() {
            return Ok(());
        }
        let (from, to) = (task.source.path(), task.destination.path());
        let plain = |path: &BString| VirtualPath::parse(path).map(|plain| plain.as_bytes().to_vec());
        let mut same = plain(&from).is_ok_and(|from| plain(&to).is_ok_and(|to| from == to));
        if known && !same && self.can.facts {
            // By another name, a link, say.
            let identity = |session: &mut Session<'_>, path: &BString| match session.stat(path) {
                Err(e) if e.breaks_session() => Err(e),
                found => Ok(found.ok().and_then(|entry| entry.identity).filter(|(_, inode)| *inode != 0)),
            };
            let one = identity(self, &from)?;
            same = one.is_some() && one == identity(destination, &to)?;
        }
        if same { Err(one_file(task)) } else { Ok(()) }
    }

    /// The server is on this machine.
    pub(crate) fn is_here(&self) -> bool {
        self.control.remote_addr().ip() == self.control.local_addr().ip()
    }

    /// As [`Self::is_another_file`], of a file of this machine.
    pub(crate) fn is_apart(&mut self, task: &Task, identity: (u64, u64)) -> Result<(), RemoteError> {
        if !self.can.facts {
            return Ok(());
        }
        match self.stat(&task.destination.path()) {
            Ok(there) if there.identity == Some(identity) => Err(one_file(task)),
            Err(e) if e.breaks_session() => Err(e),
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// The commands that set times and modes, as far as the server has any.
    pub(crate) fn attributes(
        &self,
        path: &BString,
        modified: Option<i64>,
        mode: Option<u32>,
    ) -> Vec<Command> {
        let path = path.clone();
        let time = modified.and_then(|modified| {
            let path = path.clone();
            if self.can.set_time {
                Some(Command::Mfmt { modified, path })
            } else {
                self.can.extended.then_some(Command::Site(SiteCommand::Utime { modified, path }))
            }
        });
        let mode = mode.map(|mode| Command::Site(SiteCommand::Chmod { mode: mode & 0o7777, path }));
        time.into_iter().chain(mode).collect()
    }

    /// Those that give `path` what the file of `task` is to keep of its source.
    pub(crate) fn preserving(&self, task: &Task, path: &BString, preserve: Preserve) -> Vec<Command> {
        let modified = task.modified.filter(|_| preserve.times);
        // A part that gets no name has to be written again.
        let part = *path != task.destination.path();
        let mode = task.mode.map(|mode| if part { mode | OWNER_WRITES } else { mode });
        self.attributes(path, modified, mode.filter(|_| preserve.modes))
    }

    /// What follows once that has its own name.
    pub(crate) fn closing(&self, task: &Task, preserve: Preserve) -> Option<Command> {
        let mode = task.mode.filter(|mode| preserve.modes && mode & OWNER_WRITES == 0)?;
        self.attributes(&task.destination.path(), None, Some(mode)).pop()
    }

    pub(crate) fn make_directory(&mut self, path: &[u8], parents: bool) -> Result<(), RemoteError> {
        let first = match self.call(&Command::Mkd(path.into())) {
            Ok(_) => return Ok(()),
            Err(e) if e.breaks_session() || !parents => return Err(e),
            Err(e) if exists(&e) => {
                return if self.stat(path).is_ok_and(|there| !there.is_directory()) {
                    Err(e)
                } else {
                    Ok(())
                };
            }
            Err(e) => e,
        };
        let mut missing = Vec::new();
        let mut above = Some(path);
        while let Some(directory) = above.filter(|d| *d != b"/") {
            missing.push(Command::Mkd(directory.into()));
            above = parent(directory);
        }
        missing.reverse();
        // Those that exist are refused; only the last one counts.
        let made = self.calls(&missing)?.pop().is_some_and(|reply| reply.is_ok());
        if made || self.stat(path).is_ok_and(|entry| entry.is_directory()) { Ok(()) } else { Err(first) }
    }

    /// Makes directories, parents first; those that exist are no error. All commands go out at once.
    pub(crate) fn make_directories(
        &mut self,
        paths: &[BString],
    ) -> Result<Vec<Result<bool, RemoteError>>, RemoteError> {
        let commands: Vec<Command> = paths.iter().map(|path| Command::Mkd(path.clone())).collect();
        let replies = self.calls(&commands)?;
        let refused: Vec<BString> = replies
            .iter()
            .zip(paths)
            .filter(|(reply, _)| reply.is_err())
            .map(|(_, path)| path.clone())
            .collect();
        let mut there = self.stat_many(&refused)?.into_iter();
        let mut results = Vec::with_capacity(paths.len());
        for reply in replies {
            results.push(match reply {
                Ok(_) => Ok(true),
                Err(e) => match there.next() {
                    Some(Ok(entry)) if entry.is_directory() => Ok(false),
                    // It may not be looked at, which is not to say that it is none.
                    Some(Err(unknown)) if exists(&e) && !unknown.breaks_session() => Ok(false),
                    _ => Err(e),
                },
            });
        }
        Ok(results)
    }

    /// Removes a file, a link or an empty directory.
    pub(crate) fn remove(&mut self, path: &[u8]) -> Result<(), RemoteError> {
        let file = match self.call(&Command::Dele(path.into())) {
            Ok(_) => return Ok(()),
            Err(e) if e.breaks_session() => return Err(e),
            Err(e) => e,
        };
        match self.call(&Command::Rmd(path.into())) {
            Ok(_) => Ok(()),
            Err(e) if e.breaks_session() => Err(e),
            // The better of the two reasons.
            Err(directory) => match self.stat(path) {
                Ok(entry) if entry.is_directory() => Err(directory),
                _ => Err(file),
            },
        }
    }

    /// A directory that has nothing in it.
    pub(crate) fn remove_directory(&mut self, path: &[u8]) -> Result<(), RemoteError> {
        self.call(&Command::Rmd(path.into())).map(drop)
    }

    /// Removes a whole tree.
    pub(crate) fn remove_tree(&mut self, path: &[u8]) -> Result<(), RemoteError> {
        self.remove_deep(path, LEVELS)
    }

    /// `left`: directories within directories that are gone into.
    fn remove_deep(&mut self, path: &[u8], left: usize) -> Result<(), RemoteError> {
        if self.can.extended {
            let reply = self.control.call(&Command::Site(SiteCommand::Rdel(path.into())))?;
            if reply.is_success() {
                return Ok(());
            }
            if !is_unknown_command(&reply) && self.stat(path).is_ok_and(|entry| entry.is_directory()) {
                return Err(self.refused("SITE RDEL", reply));
            }
        }
        // A link is removed by it, also where servers say of one what it leads to; a directory is not.
        match self.call(&Command::Dele(path.into())) {
            Ok(_) => return Ok(()),
            Err(e) if e.breaks_session() => return Err(e),
            Err(_) => {}
        }
        if !self.stat(path)?.is_directory() {
            return self.remove(path);
        }
        for entry in self.listing(path)? {
            let entry = entry?;
            let path = crate::place::join(path, &entry.name);
            if entry.is_directory() && entry.target.is_none() {
                let Some(left) = left.checked_sub(1) else {
                    let what = format!("{}: deeper than {LEVELS} directories", path.as_bstr());
                    return Err(RemoteError::Usage(what));
                };
                self.remove_deep(&path, left)?;
            } else {
                self.remove(&path)?;
            }
        }
        self.call(&Command::Rmd(path.into())).map(drop)
    }

    pub(crate) fn rename(&mut self, from: &[u8], to: &[u8]) -> Result<(), RemoteError> {
        let commands = [Command::Rnfr(from.into()), Command::Rnto(to.into())];
        for reply in self.calls(&commands)? {
            reply?;
        }
        Ok(())
    }

    /// Makes a symbolic link, in two commands as GCT's server knows it or in one as GCT's client sends it.
    ///
    /// GCT's server takes a relative target from the current directory, makes it absolute, and wants it to exist. Ours takes
    /// it in one command as it is, whatever it leads to.
    pub(crate) fn symlink(&mut self, target: &[u8], link: &[u8]) -> Result<(), RemoteError> {
        if self.can.is_ours() {
            return self.symlink_at_once(target, link);
        }
        let here = self.call(&Command::Pwd)?;
        let (Some(back), Some(beside)) =
            (answer::path(&here), parent(link).filter(|_| !target.starts_with(b"/")))
        else {
            return self.symlink_here(target, link);
        };
        self.call(&Command::Cwd(beside.into()))?;
        let made = self.symlink_here(target, if link.starts_with(b"/") { link } else { base_name(link) });
        self.call(&Command::Cwd(back))?;
        made
    }

    fn symlink_here(&mut self, target: &[u8], link: &[u8]) -> Result<(), RemoteError> {
        let from = Command::Site(SiteCommand::SymlinkFrom(target.into()));
        if self.try_call(&from)? {
            return self.call(&Command::Site(SiteCommand::SymlinkTo(link.into()))).map(drop);
        }
        self.symlink_at_once(target, link)
    }

    fn symlink_at_once(&mut self, target: &[u8], link: &[u8]) -> Result<(), RemoteError> {
        let once = Command::Site(SiteCommand::Symlink { target: target.into(), link: link.into() });
        self.call(&once).map(drop)
    }

    /// As [`Session::symlink`]; what has the name already is replaced, once there is a link to take its place.
    pub(crate) fn replace_link(&mut self, target: &[u8], link: &[u8]) -> Result<(), RemoteError> {
        let error = match self.symlink(target, link) {
            Err(e) if !e.breaks_session() => e,
            made => return made,
        };
        let beside = part_apart(link);
        match self.symlink(target, &beside) {
            Ok(()) => {}
            Err(e) if e.breaks_session() => return Err(e),
            Err(_) => return Err(error),
        }
        match self.rename(&beside, link) {
            Err(e) if !e.breaks_session() => {
                self.control.call(&Command::Dele(beside))?;
                Err(e)
            }
            renamed => renamed,
        }
    }

    /// The entries of a directory, or the file itself.
    pub(crate) fn listing(&mut self, path: &[u8]) -> Result<Listing, RemoteError> {
        if self.can.facts {
            let command = Command::Mlsd(Some(path.into()));
            return self.entries(&command, |line| from_facts(line.as_bstr())).map(Listing::flat);
        }
        // Many servers leave out names that begin with a dot unless they are asked as `ls` is. Others take the option
        // for a name, and have nothing of that name.
        let asked = [b"-a ", path].concat();
        match self.entries(&Command::List(Some(asked.into())), from_long) {
            Err(e) if e.breaks_session() => return Err(e),
            Ok(listing) => {
                let mut listing = listing.flat();
                if listing.tells_something()? {
                    return Ok(listing);
                }
            }
            Err(_) => {}
        }
        self.entries(&Command::List(Some(path.into())), from_long).map(Listing::flat)
    }

    /// Everything beneath a directory in one listing; names are relative to it. Needs MLSR. A directory that cannot be
    /// read is an entry with an error.
    pub(crate) fn tree(&mut self, path: &[u8]) -> Result<Listing, RemoteError> {
        // Ours give the whole tree or nothing unless they are asked. GCT's goes on by itself, and takes the line for an
        // empty list of facts.
        if self.can.ranges {
            let go_on = RecursionOptions { continue_on_error: Some(true), traverse_links: None };
            self.control.suggest(&Command::Opts(Options::Mlsr(go_on)))?;
        }
        self.entries(&Command::Mlsr(Some(path.into())), |line| from_facts(line.as_bstr()))
    }

    /// Fetches a listing as a whole before it is looked at: whoever takes the entries may take its time, while a server
    /// would not wait for long.
    fn entries(&mut self, command: &Command, parse: fn(&[u8]) -> Line) -> Result<Listing, RemoteError> {
        let mut spool = tempfile::spooled_tempfile(LISTING_IN_MEMORY);
        self.fetch(std::slice::from_ref(command), &mut spool)?;
        spool.rewind().map_err(RemoteError::Output)?;
        let peer = self.control.peer().to_owned();
        Ok(Listing::new(spool, parse, peer))
    }

    /// A file, or a part of it, in order.
    pub(crate) fn read_to(
        &mut self,
        path: &[u8],
        writer: &mut dyn Write,
        window: Amount,
    ) -> Result<u64, RemoteError> {
        let whole = Command::Retr(path.into());
        let Some(window) = window else { return self.fetch(&[whole], writer) };
        if self.can.partial {
            let length = window.length.unwrap_or(i64::MAX as u64 - window.offset);
            let what = Retrieval::Partial(Part { offset: window.offset, length });
            return self.fetch(&[Command::Eret { what, path: path.into() }], writer);
        }
        let mut limited =
            Limited { writer, left: window.length.unwrap_or(u64::MAX), full: false, written: 0 };
        let commands = [Command::Rest(Restart::Offset(window.offset)), whole];
        match self.fetch(&commands[usize::from(window.offset == 0)..], &mut limited) {
            Err(RemoteError::Output(_)) if limited.full => Ok(limited.written),
            result => result.map(|_| limited.written),
        }
    }

    /// As [`read_to`](Self::read_to); fewer bytes than the server says it has are an error: in MODE S the end of the connection tells
    /// nothing.
    pub(crate) fn read_whole(
        &mut self,
        path: &[u8],
        writer: &mut dyn Write,
        window: Amount,
    ) -> Result<u64, RemoteError> {
        let size = match self.size(path) {
            Err(e) if e.breaks_session() => return Err(e),
            // Of what is no plain file it is not told.
            size => size.unwrap_or(0),
        };
        let bytes = self.read_to(path, writer, window)?;
        let rest = size.saturating_sub(window.map_or(0, |window| window.offset));
        let expected = window.and_then(|window| window.length).map_or(rest, |length| length.min(rest));
        if bytes < expected {
            return Err(RemoteError::Incomplete { path: path.into(), bytes, expected });
        }
        Ok(bytes)
    }

    /// Carries out commands of which the last one sends data, over a stream of its own.
    pub(crate) fn fetch(&mut self, commands: &[Command], sink: &mut dyn Write) -> Result<u64, RemoteError> {
        self.receiving(Mode::Stream, 1, None)?;
        let Some((last, before)) = commands.split_last() else { return Ok(0) };
        // Where one is refused the last one would send what is not wanted.
        for command in before {
            self.call(command)?;
        }
        self.control.send(last)?;
        let Some(mut channel) = self.take_channel() else { return Ok(0) };
        let mut ended: Option<Reply> = None;
        let mut judge = |answer: Answer| {
            let Answer::Final(reply) = answer else { return ControlFlow::Continue(()) };
            let failed = reply.is_failure();
            ended = Some(reply);
            if failed { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let (stall, cancel) = (self.setup.options.stall, self.setup.cancel.clone());
        let mut watch = Watch::new(&mut self.control, &mut judge, None, stall, &cancel, last.verb().into());
        let result = channel.data.receive_writer(sink, &mut watch, &Progress::new());
        let failure = watch.failure.take();
        drop(channel);
        if let Some(failure) = failure {
            return Err(failure);
        }
        // Also after a failure: the server's reason is the better one, and its answer must not stay behind.
        let ended = match ended {
            Some(reply) => reply,
            None => self.control.finish()?,
        };
        match result {
            // vsftpd's way to say that a listing is none.
            Ok(_) if ended.to_string().contains("failed to open directory") => {
                Err(self.refused(last.verb(), ended))
            }
            Ok(received) => self.accept(last.verb(), ended).map(|_| received.bytes),
            Err(e @ ropewalk_engine::Error::Writer(_)) => {
                Err(RemoteError::data(self.control.peer(), "".into(), e))
            }
            Err(_) if ended.is_failure() => Err(self.refused(last.verb(), ended)),
            Err(e) => Err(RemoteError::data(self.control.peer(), last.verb().into(), e)),
        }
    }
}

/// Something has the name of a directory that was to be made.
fn exists(error: &RemoteError) -> bool {
    matches!(error, RemoteError::Refused { reply, .. } if ErrorClass::of(reply) == Some(ErrorClass::PathExists))
}

/// Takes so many bytes, and then an error ends the transfer.
struct Limited<'a> {
    writer: &'a mut dyn Write,
    left: u64,
    full: bool,
    written: u64,
}

impl Write for Limited<'_> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let n = usize::try_from(self.left).unwrap_or(usize::MAX).min(data.len());
        if n == 0 && !data.is_empty() {
            self.full = true;
            return Err(io::Error::other("enough"));
        }
        let n = self.writer.write(&data[..n])?;
        self.left -= n as u64;
        self.written += n as u64;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}
