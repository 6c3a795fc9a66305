//! Small operations of a session: attributes, and the state of a file.

mod fetch;
pub(crate) mod names;

use std::ops::ControlFlow;

use bstr::{BString, ByteSlice};
use ropewalk_protocol::client::answer;
use ropewalk_protocol::command::Command;
use ropewalk_protocol::path::VirtualPath;
use ropewalk_protocol::range::RangeSet;
use ropewalk_protocol::reply::Reply;
use ropewalk_protocol::site::SiteCommand;
use ropewalk_storage::Kind;
use ropewalk_storage::checksum::Algorithm;

use crate::model::entry::{OF_LINKS, from_status};
use crate::model::error::reply_kind;
use crate::part::LATE_BLOCK;
use crate::place::base_name;
use crate::session::Session;
use crate::task::{Task, one_file};
use crate::{Amount, Entry, FailureKind, Preserve, RemoteError};

/// Permission bit.
const OWNER_WRITES: u32 = 0o200;

impl Session {
    /// The attributes of a file or directory; links are followed. The entry's name is the requested
    /// one.
    pub(crate) fn stat(&mut self, path: &[u8]) -> Result<Entry, RemoteError> {
        if self.can.facts {
            let reply = self.call(&Command::Mlst(Some(path.into())))?;
            let entry = from_status(&reply).ok_or_else(|| self.nonsense("MLST", &reply))?;
            return self.followed(path, Entry { name: base_name(path).into(), ..entry });
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
        // A name without a size may be a directory.
        let Some(entered) = self.entered(path)? else { return Err(missing) };
        if entered.is_failure() {
            // Many servers use one code for all errors of a name; some describe the error in words.
            let nothing = matches!(&missing, RemoteError::Refused { reply, .. } if reply.code() == 550);
            let denied =
                missing.kind() == FailureKind::Permission && reply_kind(&entered) == FailureKind::Permission;
            return Err(if nothing && entered.code() == 550 && !denied {
                let reason = format!("{}: no such file or directory, or no permission", path.as_bstr());
                RemoteError::Lost { kind: FailureKind::NotFound, reason }
            } else {
                missing
            });
        }
        Ok(Entry::new(base_name(path), Kind::Directory))
    }

    /// Enters a directory, leaves it again, and returns the reply. `None`: without a PWD to return
    /// to, the directory is not entered.
    fn entered(&mut self, path: &[u8]) -> Result<Option<Reply>, RemoteError> {
        let here = self.call(&Command::Pwd)?;
        let Some(back) = answer::path(&here) else { return Ok(None) };
        let entered = self.control.call(&Command::Cwd(path.into()))?;
        if entered.is_success() {
            self.back_to(back)?;
        }
        Ok(Some(entered))
    }

    /// Follows the symbolic link that MLST may have described: some servers (ProFTPD) report the
    /// link, or its target with the link's size and permissions.
    fn followed(&mut self, path: &[u8], entry: Entry) -> Result<Entry, RemoteError> {
        let link = entry.kind == Kind::Symlink;
        let maybe = link || entry.kind == Kind::File && entry.mode == Some(OF_LINKS);
        if !maybe || !self.quirks.reports_links_unfollowed {
            return Ok(entry);
        }
        let told = self.calls(&[Command::Size(path.into()), Command::Mdtm(path.into())])?;
        let mut told = told.into_iter().map(Result::ok);
        if let Some(size) = told.next().flatten().as_ref().and_then(answer::size) {
            if !link && entry.size == Some(size) {
                return Ok(entry);
            }
            let modified = told.next().flatten().as_ref().and_then(answer::modified);
            return Ok(Entry { kind: Kind::File, size: Some(size), modified, mode: None, ..entry });
        }
        if !link {
            return Ok(entry);
        }
        if self.entered(path)?.is_some_and(|entered| entered.is_success()) {
            return Ok(Entry { kind: Kind::Directory, size: None, modified: None, mode: None, ..entry });
        }
        let reason = format!("{}: a dangling symbolic link, or no permission", path.as_bstr());
        Err(RemoteError::Lost { kind: FailureKind::NotFound, reason })
    }

    /// Times of files, seconds since 1970, as far as the server reports them.
    pub(crate) fn times(&mut self, paths: &[BString]) -> Result<Vec<Option<i64>>, RemoteError> {
        let commands: Vec<Command> = paths.iter().map(|path| Command::Mdtm(path.clone())).collect();
        let replies = self.calls(&commands)?;
        Ok(replies.into_iter().map(|reply| answer::modified(&reply.ok()?)).collect())
    }

    /// Whether these names exist (`true`: as a directory); `None` if the server does not say.
    pub(crate) fn have(&mut self, names: &[(BString, bool)]) -> Result<Vec<Option<bool>>, RemoteError> {
        let facts = self.can.facts;
        let commands: Vec<Command> = names
            .iter()
            .filter(|(_, directory)| facts || !directory)
            .map(|(path, _)| match facts {
                true => Command::Mlst(Some(path.clone())),
                false => Command::Size(path.clone()),
            })
            .collect();
        let mut replies = self.calls(&commands)?.into_iter();
        let mut have = Vec::with_capacity(names.len());
        for (path, directory) in names {
            let reply = if facts || !directory { replies.next() } else { None };
            let told = reply.map_or_else(|| self.stat(path).map(drop), |reply| reply.map(drop));
            have.push(match told {
                Ok(()) => Some(true),
                Err(e) if e.breaks_session() => return Err(e),
                Err(RemoteError::Refused { reply, .. }) if reply.code() < 500 => None,
                Err(_) => Some(false),
            });
        }
        Ok(have)
    }

    /// Returns to the directory that names are relative to. If that is refused, the session is
    /// unusable.
    fn back_to(&mut self, directory: BString) -> Result<(), RemoteError> {
        match self.call(&Command::Cwd(directory)) {
            Err(e) if !e.breaks_session() => Err(RemoteError::Desynchronized),
            entered => entered.map(drop),
        }
    }

    /// The same as [`Session::stat`] for many paths at once, if the server has MLST.
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
                self.followed(path, Entry { name: base_name(path).into(), ..entry })
            }));
        }
        Ok(entries)
    }

    /// Checks that the source still has the same size and time, as far as the server reports them.
    pub(crate) fn unchanged(&mut self, task: &Task) -> Result<(), RemoteError> {
        let path = task.source.path();
        match self.stat(&path) {
            Ok(entry) if self.differs(task, &entry) => Err(RemoteError::SourceChanged { path }),
            Err(e) if e.breaks_session() => Err(e),
            _ => Ok(()),
        }
    }

    pub(crate) fn size(&mut self, path: &[u8]) -> Result<u64, RemoteError> {
        let reply = self.call(&Command::Size(path.into()))?;
        answer::size(&reply).ok_or_else(|| self.nonsense("SIZE", &reply))
    }

    /// `size`: the size of the whole file, if known; it determines how long the server may be
    /// silent.
    pub(crate) fn checksum(
        &mut self,
        path: &[u8],
        algorithm: Algorithm,
        window: Amount,
        size: Option<u64>,
    ) -> Result<String, RemoteError> {
        self.checksum_while(path, algorithm, window, size, &mut |_| ControlFlow::Continue(()))
    }

    /// The same as [`Session::checksum`]. `waiting` gets the number of bytes that the server has
    /// reported as summed, see [`Control::finish_while`](crate::control::Control::finish_while).
    pub(crate) fn checksum_while(
        &mut self,
        path: &[u8],
        algorithm: Algorithm,
        window: Amount,
        size: Option<u64>,
        waiting: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<String, RemoteError> {
        let length = window.and_then(|w| w.length);
        let size = match size {
            None if length.is_none() && self.can.size => match self.size(path) {
                Err(e) if e.breaks_session() => return Err(e),
                size => size.ok(),
            },
            size => size,
        };
        let offset = window.map_or(0, |w| w.offset);
        let command = Command::Cksm { algorithm, offset, length, path: path.into() };
        if waiting(0).is_break() {
            return Err(RemoteError::Cancelled);
        }
        self.control.send(&command)?;
        self.control.last_reads(size);
        let reply = self.control.finish_while(waiting)?;
        let reply = self.accept_for(&command, reply)?;
        answer::checksum(&reply).ok_or_else(|| self.nonsense("CKSM", &reply))
    }

    /// Whether uploads to one file may have one part name: the server refuses the second one. An
    /// upload by SITE UPLOAD has an ID of its own instead.
    pub(crate) fn shares_part_names(&self) -> bool {
        self.quirks.separates_uploads && !self.can.upload
    }

    /// The ranges that an interrupted upload has left (a Ropewalk extension).
    pub(crate) fn ranges(&mut self, path: &[u8]) -> Result<RangeSet, RemoteError> {
        let reply = self.control.call(&Command::Site(SiteCommand::Ranges(path.into())))?;
        if reply.is_failure() {
            let refused = self.refused("SITE RANGES", reply);
            // A broken session may still hold the part. That does not mean that there are no
            // ranges; otherwise the part would be restarted, and lost, a moment later.
            return if refused.is_busy() { Err(refused) } else { Ok(RangeSet::new()) };
        }
        answer::ranges(&reply).ok_or_else(|| self.nonsense("SITE RANGES", &reply))
    }

    /// The ranges that an interrupted upload to `part` has left. `known` are those that markers
    /// reported; Ropewalk servers report the ranges themselves. In MODE S a file grows from its
    /// beginning, so that its size is sufficient. GridFTP servers may have written it in MODE E
    /// before, with holes.
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
        // It is shorter than the markers reported, so it is another file.
        let mut known = if known.end() <= there { known } else { RangeSet::new() };
        known.remove(0..LATE_BLOCK);
        Ok(known)
    }

    /// Whether STOR would write only the beginning of a file: it truncates a longer one.
    pub(crate) fn would_truncate(&self, task: &Task) -> bool {
        task.window.is_some() && task.offset() == 0 && !self.can.partial
    }

    /// Refuses to replace a file of which only the beginning is to be written.
    pub(crate) fn spare_beginning(&mut self, task: &Task) -> Result<(), RemoteError> {
        if !self.would_truncate(task) {
            return Ok(());
        }
        match self.size(&task.destination.path()) {
            Ok(there) if task.length().is_none_or(|length| there > length) => {
                let peer = self.control.peer().to_owned();
                let what = format!("write the beginning of an existing file of {there} bytes (no ESTO)");
                Err(RemoteError::Unsupported { peer, what })
            }
            Err(e) if e.breaks_session() => Err(e),
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// Refuses to copy a file of this server onto itself. `known`: also compares the entries in
    /// their directories.
    pub(crate) fn is_another_file(
        &mut self,
        task: &Task,
        destination: &mut Self,
        known: bool,
    ) -> Result<(), RemoteError> {
        if self.control.remote_addr() != destination.control.remote_addr() {
            return Ok(());
        }
        let (from, to) = (task.source.path(), task.destination.path());
        let plain = |path: &BString| VirtualPath::parse(path).map(|plain| plain.as_bytes().to_vec());
        let mut same = plain(&from).is_ok_and(|from| plain(&to).is_ok_and(|to| from == to));
        if known && !same && self.can.facts {
            // Another name of the same file, for example a link.
            let identity = |session: &mut Self, path: &BString| match session.stat(path) {
                Err(e) if e.breaks_session() => Err(e),
                found => Ok(found.ok().and_then(|entry| entry.identity).filter(|(_, inode)| *inode != 0)),
            };
            let one = identity(self, &from)?;
            same = one.is_some() && one == identity(destination, &to)?;
        }
        if same { Err(one_file(task)) } else { Ok(()) }
    }

    /// Whether the server is on this machine.
    pub(crate) fn is_here(&self) -> bool {
        self.control.remote_addr().ip() == self.control.local_addr().ip()
    }

    /// The same as [`Self::is_another_file`] for a local file.
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

    /// The commands that set times and modes, as far as the server supports them.
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

    /// Whether this destination would give its program blocks of several streams out of order, as
    /// GCT's server does, also with its driver `ordering`.
    pub(crate) fn needs_one_stream(&self, task: &Task) -> bool {
        task.destination_program && !self.quirks.has_thread_per_stream
    }

    /// The commands that give `path` the attributes that the file of `task` keeps.
    pub(crate) fn preserving(&self, task: &Task, path: &BString, preserve: Preserve) -> Vec<Command> {
        if task.destination_program {
            return Vec::new();
        }
        let modified = task.modified.filter(|_| preserve.times);
        // A part without a final name will be written again.
        let part = *path != task.destination.path();
        let mode = task.mode.map(|mode| if part { mode | OWNER_WRITES } else { mode });
        self.attributes(path, modified, mode.filter(|_| preserve.modes))
    }

    /// The command that follows once the file has its final name.
    pub(crate) fn closing(&self, task: &Task, preserve: Preserve) -> Option<Command> {
        let mode = task.mode.filter(|mode| preserve.modes && mode & OWNER_WRITES == 0)?;
        self.attributes(&task.destination.path(), None, Some(mode)).pop()
    }
}
