//! Uploads to a far server: by SITE UPLOAD if the server supports it, otherwise into a part file
//! that is renamed.

use std::sync::Arc;

use bstr::BString;
use parking_lot::Mutex;
use ropewalk_protocol::client::answer;
use ropewalk_protocol::command::{Command, Placement, Restart};
use ropewalk_protocol::path::VirtualPath;
use ropewalk_protocol::range::RangeSet;
use ropewalk_protocol::server::Mode;
use ropewalk_protocol::site::SiteCommand;
use ropewalk_protocol::upload::{UploadCommand, UploadId, UploadParameters};
use ropewalk_storage::checksum::{Algorithm, Hasher};
use ropewalk_storage::part_name;

use super::Far;
use super::data::{Outgoing, OutgoingSource};
use crate::session::Session;
use crate::{Error, RemoteError};

/// The file that is uploaded.
pub struct FarUploadSpec<'a> {
    pub path: &'a VirtualPath,
    /// The ID that the client of this program has given to the upload. The server gets the same
    /// one, so that the client can resume the upload without this program, or through another one.
    /// `None`: one is made from the version and the path.
    pub id: Option<UploadId>,
    /// Identifies the source and its version: data of another version is not resumed.
    pub version: &'a str,
    pub size: Option<u64>,
    pub resume: bool,
}

/// The values that complete an upload.
#[derive(Clone, Copy, Debug)]
pub struct ToCommit<'a> {
    pub length: u64,
    /// The number of bytes that the server has, which may exceed the length of the file.
    pub sent: u64,
    /// Seconds since 1970.
    pub modified: Option<i64>,
    pub mode: Option<u32>,
    /// The CRC-32C sum of the file, which the server compares.
    pub crc32c: Option<&'a str>,
    /// Some ranges were not sent and are zeros.
    pub holes: bool,
}

enum Staged {
    Upload(UploadId),
    Part(BString),
}

/// An upload that has started. It holds a session until it ends; if it is dropped, it is suspended
/// together with its session.
pub struct FarUpload {
    far: Arc<Far>,
    path: BString,
    staged: Staged,
    any_order: bool,
    session: Mutex<Option<Session>>,
    present: RangeSet,
    /// The bytes that the server did not have at the start, if the size is known.
    missing: Option<u64>,
    started_over: Option<String>,
}

impl Far {
    /// Starts or resumes an upload.
    ///
    /// # Errors
    /// The server refuses, or the session breaks.
    pub fn begin_upload(self: &Arc<Self>, spec: &FarUploadSpec<'_>) -> Result<FarUpload, Error> {
        let id = spec.id.clone().unwrap_or_else(|| upload_id(spec));
        let path: BString = spec.path.as_bytes().into();
        let begun = |session: &mut Session| -> Result<(Staged, RangeSet, Option<String>), RemoteError> {
            if !session.can.upload {
                return Ok((Staged::Part(part_name(spec.path).as_bytes().into()), RangeSet::new(), None));
            }
            let parameters =
                UploadParameters { size: spec.size, resume: spec.resume, ..UploadParameters::default() };
            let begin = UploadCommand::Begin { id: id.clone(), parameters, path: path.clone() };
            let mut commands = vec![upload(begin)];
            if spec.resume {
                commands.push(upload(UploadCommand::Ranges(id.clone())));
            }
            let mut replies = session.calls(&commands)?.into_iter();
            let begun = replies.next().ok_or(RemoteError::Desynchronized)??;
            let present = match replies.next() {
                None => RangeSet::new(),
                Some(ranges) => {
                    let reply = ranges?;
                    answer::ranges(&reply).ok_or_else(|| session.nonsense("SITE UPLOAD RANGES", &reply))?
                }
            };
            let text = begun.text().to_string();
            let reason =
                text.split_once(" bytes: ").map(|(_, reason)| reason.trim_end_matches('.').to_owned());
            Ok((Staged::Upload(id.clone()), present, reason))
        };
        loop {
            let (mut session, used) = self.take()?;
            match begun(&mut session) {
                Ok((staged, present, started_over)) => {
                    let any_order = session.preferred_mode() == Mode::ExtendedBlock;
                    let (far, session) = (self.clone(), Mutex::new(Some(session)));
                    let missing = spec.size.map(|size| size.saturating_sub(present.len()));
                    return Ok(FarUpload {
                        far,
                        path,
                        staged,
                        any_order,
                        session,
                        present,
                        missing,
                        started_over,
                    });
                }
                Err(error) if !error.breaks_session() => {
                    self.keep(session);
                    return Err(error.into());
                }
                Err(RemoteError::Closed { .. } | RemoteError::Control { .. }) if used => {
                    self.idle.lock().clear();
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl FarUpload {
    /// The ranges that the server had at the start.
    pub fn present(&self) -> &RangeSet {
        &self.present
    }

    /// Why the server did not use the data of an earlier upload.
    pub fn started_over(&self) -> Option<&str> {
        self.started_over.as_deref()
    }

    /// Whether ranges can be sent in any order.
    pub fn takes_any_order(&self) -> bool {
        self.any_order
    }

    /// The name under which the server stores the bytes until the upload is complete.
    pub fn part(&self) -> BString {
        match &self.staged {
            Staged::Part(part) => part.clone(),
            Staged::Upload(_) => {
                let name = VirtualPath::parse(&self.path).map(|path| part_name(&path).as_bytes().into());
                name.unwrap_or_else(|_| self.path.clone())
            }
        }
    }

    /// Sends ranges. Only one call may run at a time.
    ///
    /// # Errors
    /// The server refuses, the source fails, the caller cancels, or the session breaks.
    pub fn send(&self, outgoing: Outgoing<'_>) -> Result<(), Error> {
        let commands = match (&self.staged, &outgoing.source) {
            (Staged::Upload(id), source) => {
                let at = if let OutgoingSource::InOrder(at, _) = source { *at } else { 0 };
                let path = id.as_str().into();
                vec![Command::Esto { place: Placement::Upload(at), path }]
            }
            (Staged::Part(part), OutgoingSource::Ranges(..)) => {
                vec![Command::Stor(part.clone())]
            }
            (Staged::Part(part), OutgoingSource::InOrder(0, _)) => vec![Command::Stor(part.clone())],
            (Staged::Part(part), OutgoingSource::InOrder(at, _)) => {
                vec![Command::Rest(Restart::Offset(*at)), Command::Stor(part.clone())]
            }
        };
        let mut session = self.session.lock().take().ok_or(RemoteError::Desynchronized)?;
        let result = session.send_data(&self.far, &commands, outgoing, self.missing);
        if session.settle_transfer(result.is_err()) {
            *self.session.lock() = Some(session);
        }
        Ok(result?)
    }

    /// Sets the length and attributes of the file, and gives it its name.
    ///
    /// # Errors
    /// The server refuses, for example because the checksum differs; or the session breaks.
    pub fn commit(&self, file: &ToCommit<'_>) -> Result<(), Error> {
        self.finish(|session| {
            let longer = file.sent > file.length;
            match &self.staged {
                Staged::Upload(id) => {
                    let checksum = file.crc32c.filter(|_| !longer);
                    let parameters = UploadParameters {
                        size: Some(file.length.max(file.sent)),
                        modified: file.modified.filter(|_| !longer),
                        mode: file.mode.map(|mode| mode & 0o777),
                        checksum: checksum.map(|sum| (Algorithm::Crc32c, sum.into())),
                        resume: false,
                        holes: file.holes,
                    };
                    let commit = upload(UploadCommand::Commit { id: id.clone(), parameters });
                    session.call_reading(&commit, Some(file.length))?;
                    if longer {
                        let (length, path) = (file.length, self.path.clone());
                        session.call(&Command::Site(SiteCommand::Truncate { length, path }))?;
                    }
                    let special = file.mode.filter(|mode| mode & 0o7000 != 0);
                    let modified = file.modified.filter(|_| longer);
                    if special.is_some() || modified.is_some() {
                        session.set_attributes(&self.path, modified, special)?;
                    }
                    Ok(())
                }
                Staged::Part(part) => {
                    if longer {
                        let (length, path) = (file.length, part.clone());
                        session.call(&Command::Site(SiteCommand::Truncate { length, path }))?;
                    }
                    for command in session.attributes(part, file.modified, file.mode) {
                        // Plain servers may support neither.
                        session.control.call(&command)?;
                    }
                    session.rename(part, &self.path)
                }
            }
        })
    }

    /// Keeps the received data at the server for a later upload.
    ///
    /// # Errors
    /// The server refuses, or the session breaks.
    pub fn suspend(&self) -> Result<(), Error> {
        self.finish(|session| match &self.staged {
            Staged::Upload(id) => session.call(&upload(UploadCommand::Suspend(id.clone()))).map(drop),
            Staged::Part(_) => Ok(()),
        })
    }

    /// Removes the received data at the server.
    ///
    /// # Errors
    /// The server refuses, or the session breaks.
    pub fn discard(&self) -> Result<(), Error> {
        self.finish(|session| match &self.staged {
            Staged::Upload(id) => session.call(&upload(UploadCommand::Discard(id.clone()))).map(drop),
            Staged::Part(part) => session.control.call(&Command::Dele(part.clone())).map(drop),
        })
    }

    /// Returns the session to the idle ones if the operation succeeds.
    fn finish(&self, operation: impl FnOnce(&mut Session) -> Result<(), RemoteError>) -> Result<(), Error> {
        let mut held = self.session.lock();
        let session = held.as_mut().ok_or(RemoteError::Desynchronized)?;
        let result = operation(session);
        match &result {
            Ok(()) => {
                if let Some(session) = held.take() {
                    self.far.keep(session);
                }
            }
            Err(error) if error.breaks_session() => *held = None,
            Err(_) => {}
        }
        Ok(result?)
    }
}

fn upload(command: UploadCommand) -> Command {
    Command::Site(SiteCommand::Upload(command))
}

/// The same identifier for each upload of one version of a source to one path.
fn upload_id(spec: &FarUploadSpec<'_>) -> UploadId {
    let mut hasher = Hasher::new(Algorithm::Sha256);
    hasher.update(spec.version.as_bytes());
    hasher.update(&[0]);
    hasher.update(spec.path.as_bytes());
    u128::from_str_radix(&hasher.finish()[..32], 16).unwrap_or_default().into()
}
