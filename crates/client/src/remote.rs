//! Small operations on one server: listings, names, checksums, attributes, space, and reading
//! files.
//!
//! A [`Remote`] owns one session, and its methods block the calling thread. After an error that
//! breaks the session, the caller has to connect again.

use std::io::Write;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use bstr::BString;
use ropewalk_protocol::command::Command;
use ropewalk_protocol::slots::{ReservedSlots, SlotsRequest};
use ropewalk_protocol::space::ReservedSpace;
use ropewalk_protocol::url::Url;
use ropewalk_protocol::usage::Usage;
use ropewalk_storage::checksum::Algorithm;

use crate::model::event::no_events;
use crate::place::{Endpoint, remote_path};
use crate::session::Session;
use crate::setup::Setup;
use crate::{Amount, Cancel, Entry, Error, EventSink, Options};

/// A logged-in session with one server. Paths are raw bytes: absolute, or relative to the log-in
/// directory.
///
/// All errors except a refusal by the server and
/// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) break the session, which then cannot
/// be used any more.
pub struct Remote {
    pub(crate) session: Session,
}

impl Remote {
    /// Connects and logs in.
    ///
    /// # Errors
    /// The server cannot be reached, is not trusted or refuses the log-in, or the session does not
    /// get the required protection.
    pub fn connect(url: &Url, options: &Options) -> Result<Self, Error> {
        Self::connect_with(url, options, &no_events(), &Cancel::new())
    }

    /// Connects and logs in. If the options ask for it, the control dialogue is reported to
    /// `events`.
    ///
    /// # Errors
    /// Those of [`Remote::connect`], or the call is cancelled.
    pub fn connect_with(
        url: &Url,
        options: &Options,
        events: &Arc<dyn EventSink>,
        cancel: &Cancel,
    ) -> Result<Self, Error> {
        let setup = Setup::new(options, events, cancel);
        Ok(Self { session: Session::open(&Arc::new(Endpoint::new(url)), &setup)? })
    }

    /// The path to send in commands for a URL of this server.
    pub fn path_of(&self, url: &Url) -> BString {
        remote_path(url, &self.session.setup.options)
    }

    /// The text of the greeting.
    pub fn banner(&self) -> &str {
        &self.session.greeting
    }

    /// Requests socket buffers of this many bytes for data connections that are opened from now on
    /// (SBUF, GFD.20).
    ///
    /// # Errors
    /// The server does not know the command, or refuses the size. (Copies send SBUF only as a
    /// suggestion, and ignore a refusal.)
    pub fn set_buffer(&mut self, bytes: u64) -> Result<(), Error> {
        Ok(self.session.call(&Command::Sbuf(bytes)).map(drop)?)
    }

    /// Whether listings omit the part files of unfinished uploads (`.NAME.ropewalk-part`), as those
    /// of Ropewalk servers do.
    pub fn hides_unfinished(&self) -> bool {
        self.session.quirks.hides_part_files
    }

    /// The lines of the reply to FEAT, as the server sent them.
    pub fn features(&self) -> Vec<String> {
        self.session.features.clone()
    }

    /// The entries of a directory, or the file itself, sorted by name.
    ///
    /// # Errors
    /// The server refuses, a line of its listing cannot be parsed, or the session breaks.
    pub fn list(&mut self, path: &[u8]) -> Result<Vec<Entry>, Error> {
        let mut entries: Vec<Entry> = self.session.listing(path)?.collect::<Result<_, _>>()?;
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    /// Like [`Remote::list`], in the server's order and without keeping the entries in memory.
    ///
    /// # Errors
    /// Those of [`Remote::list`]. A line that cannot be parsed is reported after all entries.
    pub fn list_each(
        &mut self,
        path: &[u8],
        each: &mut dyn FnMut(Entry) -> ControlFlow<()>,
    ) -> Result<(), Error> {
        for entry in self.session.listing(path)? {
            if each(entry?).is_break() {
                break;
            }
        }
        Ok(())
    }

    /// The attributes of a file or directory; symbolic links are followed.
    ///
    /// # Errors
    /// The entry does not exist, the server refuses, its answer cannot be parsed, or the session
    /// breaks.
    pub fn stat(&mut self, path: &[u8]) -> Result<Entry, Error> {
        Ok(self.session.stat(path)?)
    }

    /// The size of a file in bytes.
    ///
    /// # Errors
    /// The server refuses, as many do for directories, its answer is no number, or the session
    /// breaks.
    pub fn size(&mut self, path: &[u8]) -> Result<u64, Error> {
        Ok(self.session.size(path)?)
    }

    /// Makes a directory. With `parents`, missing parents are made as well, and an existing
    /// directory is no error.
    ///
    /// # Errors
    /// The server refuses (without `parents`, also if the directory exists), or the session breaks.
    pub fn make_directory(&mut self, path: &[u8], parents: bool) -> Result<(), Error> {
        Ok(self.session.make_directory(path, parents)?)
    }

    /// Removes a file or an empty directory; with `recursive`, a whole tree.
    ///
    /// # Errors
    /// The server refuses, or the session breaks; with `recursive`, also a listing that cannot be
    /// parsed, or a tree that is too deep. Entries that were removed before the error stay removed.
    pub fn remove(&mut self, path: &[u8], recursive: bool) -> Result<(), Error> {
        let removed = if recursive { self.session.remove_tree(path) } else { self.session.remove(path) };
        Ok(removed?)
    }

    /// Renames a file or directory.
    ///
    /// # Errors
    /// A name cannot be sent in a command, the server refuses, or the session breaks.
    pub fn rename(&mut self, from: &[u8], to: &[u8]) -> Result<(), Error> {
        Ok(self.session.rename(from, to)?)
    }

    /// The checksum of a file or of a window of it, in lower-case hexadecimal.
    ///
    /// # Errors
    /// The server does not know the algorithm or refuses, its answer is no checksum, or the session
    /// breaks.
    pub fn checksum(&mut self, path: &[u8], algorithm: Algorithm, window: Amount) -> Result<String, Error> {
        Ok(self.session.checksum(path, algorithm, window, None)?)
    }

    /// Writes a file, or a window of it, in order to `writer`. Returns the number of bytes.
    ///
    /// # Errors
    /// Fewer bytes arrive than the file has according to the server, the server refuses, `writer`
    /// fails, or the session or its data connection breaks or stalls.
    pub fn read_to(&mut self, path: &[u8], writer: &mut dyn Write, window: Amount) -> Result<u64, Error> {
        Ok(self.session.read_whole(path, writer, window)?)
    }

    /// Sets the permission bits.
    ///
    /// # Errors
    /// The server does not know SITE CHMOD or refuses the mode, or the session breaks.
    pub fn set_mode(&mut self, path: &[u8], mode: u32) -> Result<(), Error> {
        Ok(self.session.set_attributes(path, None, Some(mode))?)
    }

    /// Sets the modification time, in seconds since 1970.
    ///
    /// # Errors
    /// The server has neither MFMT nor SITE UTIME or refuses the time, or the session breaks.
    pub fn set_modified(&mut self, path: &[u8], seconds: i64) -> Result<(), Error> {
        Ok(self.session.set_attributes(path, Some(seconds), None)?)
    }

    /// Makes `link` a symbolic link to `target`.
    ///
    /// # Errors
    /// A name cannot be sent in a command, the server has no symbolic links or refuses this one, or
    /// the session breaks.
    pub fn symlink(&mut self, target: &[u8], link: &[u8]) -> Result<(), Error> {
        Ok(self.session.symlink(target, link)?)
    }

    /// The bytes that are used and free in a directory (SITE USAGE), for the quota in which the
    /// user has the least space, or for the quota with this name.
    ///
    /// # Errors
    /// The server does not know SITE USAGE, the directory or the quota, its answer cannot be
    /// parsed, or the session breaks.
    pub fn space_usage(&mut self, path: &[u8], quota: Option<&str>) -> Result<Usage, Error> {
        Ok(self.session.space_usage(path, quota)?)
    }

    /// Reserves bytes for later uploads to a directory (SITE SPACE RESERVE).
    ///
    /// # Errors
    /// The server has no quotas there or too little space, its answer cannot be parsed, or the
    /// session breaks.
    pub fn reserve_space(&mut self, path: &[u8], bytes: u64, time: Duration) -> Result<ReservedSpace, Error> {
        Ok(self.session.reserve_space(path, bytes, time)?)
    }

    /// Whether the server can move the end of a reservation of space.
    pub fn extends_space(&self) -> bool {
        self.session.extends_space()
    }

    /// Moves the end of a reservation of space to so much time from now (SITE SPACE EXTEND).
    ///
    /// # Errors
    /// The user has none with this token (any more), the time is too long for the server, its
    /// answer cannot be parsed, or the session breaks.
    pub fn extend_space(&mut self, token: &str, time: Duration) -> Result<ReservedSpace, Error> {
        Ok(self.session.extend_space(token, time)?)
    }

    /// Ends a reservation of space. Returns `false` if the user has none with this token.
    ///
    /// # Errors
    /// The server does not know SITE SPACE, or the session breaks.
    pub fn release_space(&mut self, token: &str) -> Result<bool, Error> {
        Ok(self.session.release_space(token)?)
    }

    /// The reservations of space of the user.
    ///
    /// # Errors
    /// The server does not list them, its answer cannot be parsed, or the session breaks.
    pub fn reserved_space(&mut self) -> Result<Vec<ReservedSpace>, Error> {
        Ok(self.session.reserved_space()?)
    }

    /// Reserves permits for transfers and a rate for a window of time (SITE SLOTS RESERVE).
    ///
    /// # Errors
    /// The server does not know SITE SLOTS or has too little left, its answer cannot be parsed, or
    /// the session breaks.
    pub fn reserve_slots(&mut self, request: SlotsRequest) -> Result<ReservedSlots, Error> {
        Ok(self.session.reserve_slots(request)?)
    }

    /// Moves the end of the lease of a reservation of slots to so much time from now, at most to
    /// the end of its window (SITE SLOTS EXTEND).
    ///
    /// # Errors
    /// The user has none with this token (any more), the answer cannot be parsed, or the session
    /// breaks.
    pub fn extend_slots(&mut self, token: &str, lease: Duration) -> Result<ReservedSlots, Error> {
        Ok(self.session.extend_slots(token, lease)?)
    }

    /// Ends a reservation of slots. Returns `false` if the user has none with this token.
    ///
    /// # Errors
    /// The server does not know SITE SLOTS, or the session breaks.
    pub fn release_slots(&mut self, token: &str) -> Result<bool, Error> {
        Ok(self.session.release_slots(token)?)
    }

    /// The reservations of slots of the user.
    ///
    /// # Errors
    /// The server does not list them, its answer cannot be parsed, or the session breaks.
    pub fn reserved_slots(&mut self) -> Result<Vec<ReservedSlots>, Error> {
        Ok(self.session.reserved_slots()?)
    }

    /// Ends the session with QUIT.
    pub fn quit(self) {
        self.session.quit();
    }
}
