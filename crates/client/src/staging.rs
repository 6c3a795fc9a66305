//! The place at a server where the data of a file is stored until the file is complete and
//! verified.
//!
//! A server with SITE UPLOAD has uploads of its own: the client names one by an ID, sends data into
//! it, and commits it. At any other server the client writes a part file and renames it (RNFR,
//! RNTO). A [`Staging`] makes the commands of both ways. It belongs to a
//! [`RemoteUpload`](crate::remote_upload::RemoteUpload), which the sessions share that move ranges
//! of a file. Each session starts an upload before it sends data into it.

use std::sync::atomic::{AtomicBool, Ordering};

use bstr::BString;
use ropewalk_protocol::command::{Command, Placement};
use ropewalk_protocol::range::RangeSet;
use ropewalk_protocol::site::SiteCommand;
use ropewalk_protocol::upload::{UploadCommand, UploadId, UploadParameters};
use ropewalk_storage::checksum::{Algorithm, Hasher};
use ropewalk_transfer::Purpose;

use crate::model::random::unique;
use crate::part::{part_apart, part_of};
use crate::path_defaults::SMALL;
use crate::session::Session;
use crate::task::Task;
use crate::{Options, Preserve, RemoteError};

/// See the head of the module.
pub(crate) enum Staging {
    /// The data goes to the final name: the server stores it separately until it is complete, or
    /// the destination is a window or no regular file.
    Direct,
    /// A whole file that is written under its final name, and that the server does not store
    /// separately.
    InPlace,
    /// A part file, which gets the final name.
    Part(BString),
    Upload(UploadPlan),
}

/// An upload at a server with SITE UPLOAD.
pub(crate) struct UploadPlan {
    pub(crate) id: UploadId,
    path: BString,
    /// The size of the file, if the bytes on the wire are those of the file.
    size: Option<u64>,
    /// A session has started the upload, and others may send ranges of it: they join or resume it.
    begun: AtomicBool,
}

impl Staging {
    /// The staging of a file whose data does not go to its final name. With `resumes`, an earlier
    /// transfer of it is resumed.
    pub(crate) fn apart(task: &Task, session: &Session, options: &Options, resumes: bool) -> Self {
        if !session.can.upload {
            let path = if task.apart { part_apart(&task.destination.path()) } else { part_of(task) };
            return Self::Part(path);
        }
        Self::Upload(UploadPlan {
            id: upload_id(task),
            path: task.destination.path(),
            size: task.size.filter(|_| !options.data.ascii),
            begun: AtomicBool::new(resumes),
        })
    }
}

impl UploadPlan {
    /// The command that starts the upload in a session. The first one removes the data of an
    /// earlier upload of the file, unless it is resumed.
    fn begin(&self) -> Command {
        let divisible = self.size.is_some_and(|size| size > SMALL);
        let resume = self.begun.swap(divisible, Ordering::Relaxed);
        self.begin_with(resume)
    }

    fn begin_with(&self, resume: bool) -> Command {
        let parameters = UploadParameters { size: self.size, resume, ..UploadParameters::default() };
        upload(UploadCommand::Begin { id: self.id.clone(), parameters, path: self.path.clone() })
    }

    /// The commands that send data into the upload, starting at offset `at` of the file.
    pub(crate) fn transfer(&self, at: u64) -> [(Purpose, Command); 2] {
        let path = self.id.as_str().into();
        let transfer = Command::Esto { place: Placement::Upload(at), path };
        [(Purpose::Begin, self.begin()), (Purpose::Transfer, transfer)]
    }

    /// The commands that complete the upload. `size` is the size of the file if it was not known at
    /// the start.
    fn commit(
        &self,
        task: &Task,
        preserve: Preserve,
        size: Option<u64>,
        proof: UploadProof,
    ) -> Vec<(Purpose, Command)> {
        let mode = task.mode.filter(|_| preserve.modes);
        let parameters = UploadParameters {
            size: self.size.or(size),
            modified: task.modified.filter(|_| preserve.times),
            mode: mode.map(|mode| mode & 0o777),
            checksum: proof.checksum.map(|(algorithm, sum)| (algorithm, sum.into())),
            holes: proof.holes,
            resume: false,
        };
        let commit = upload(UploadCommand::Commit { id: self.id.clone(), parameters });
        // COMMIT accepts permission bits only.
        let special = mode.filter(|mode| mode & 0o7000 != 0).map(|mode| {
            let mode = mode & 0o7777;
            Command::Site(SiteCommand::Chmod { mode, path: self.path.clone() })
        });
        let special = special.map(|command| (Purpose::Attribute, command));
        std::iter::once((Purpose::Commit, commit)).chain(special).collect()
    }

    /// The commands that remove the upload, in any session.
    fn removal(&self) -> Vec<Command> {
        vec![self.begin_with(true), upload(UploadCommand::Discard(self.id.clone()))]
    }

    /// The ranges that the server has.
    fn received(&self, session: &mut Session) -> Result<RangeSet, RemoteError> {
        session.begins(&self.id);
        let ranges = upload(UploadCommand::Ranges(self.id.clone()));
        let mut replies = session.calls(&[self.begin_with(true), ranges])?.into_iter();
        self.begun.store(true, Ordering::Relaxed);
        let mut last = None;
        for reply in replies.by_ref() {
            last = Some(reply?);
        }
        let Some(reply) = last else { return Ok(RangeSet::new()) };
        ropewalk_protocol::client::answer::ranges(&reply)
            .ok_or_else(|| session.nonsense("SITE UPLOAD RANGES", &reply))
    }
}

/// The values that a server needs in order to complete an upload.
#[derive(Default)]
pub(crate) struct UploadProof {
    /// The checksum of the file, if the server has to compare it.
    pub(crate) checksum: Option<(Algorithm, String)>,
    /// Ranges that were not sent are zeros.
    pub(crate) holes: bool,
}

impl UploadProof {
    /// A checksum that another server has reported, for this server to compare.
    pub(crate) fn of(algorithm: Algorithm, sum: &str) -> Self {
        let sum = sum.trim().to_ascii_lowercase();
        // Some servers omit leading zeros.
        let sum = if algorithm.is_combinable() { format!("{sum:0>8}") } else { sum };
        Self { checksum: Some((algorithm, sum)), holes: false }
    }
}

impl Staging {
    /// The path at which FTP commands find the data, and that messages name.
    pub(crate) fn path(&self, task: &Task) -> BString {
        match self {
            Self::Part(part) => part.clone(),
            Self::Direct | Self::InPlace | Self::Upload(_) => task.destination.path(),
        }
    }

    pub(crate) fn upload(&self) -> Option<&UploadPlan> {
        if let Self::Upload(upload) = self { Some(upload) } else { None }
    }

    /// The commands that set the attributes and the name of the file after all data has arrived.
    /// `sent` is the size of a file whose size was not known before.
    pub(crate) fn naming(
        &self,
        session: &Session,
        task: &Task,
        preserve: Preserve,
        sent: Option<u64>,
        proof: UploadProof,
    ) -> Vec<(Purpose, Command)> {
        if let Self::Upload(upload) = self {
            return upload.commit(task, preserve, sent, proof);
        }
        let attribute = |command| (Purpose::Attribute, command);
        let attributes = session.preserving(task, &self.path(task), preserve);
        let mut commands: Vec<_> = attributes.into_iter().map(attribute).collect();
        if let Self::Part(part) = self {
            commands.push((Purpose::RenameFrom, Command::Rnfr(part.clone())));
            commands.push((Purpose::RenameTo, Command::Rnto(task.destination.path())));
            commands.extend(session.closing(task, preserve).map(attribute));
            if task.apart {
                // A session whose state is not known may have left this part file.
                commands.push((Purpose::Hint, Command::Dele(part_of(task))));
            }
        }
        commands
    }

    /// The commands that remove the data that has arrived; none if it has its final name.
    pub(crate) fn removal(&self) -> Vec<Command> {
        match self {
            Self::Direct | Self::InPlace => Vec::new(),
            Self::Part(part) => vec![Command::Dele(part.clone())],
            Self::Upload(upload) => upload.removal(),
        }
    }

    /// The ranges that an interrupted transfer has left. `known` are those that markers reported.
    pub(crate) fn received(
        &self,
        session: &mut Session,
        known: RangeSet,
        task: &Task,
    ) -> Result<RangeSet, RemoteError> {
        match self {
            Self::Upload(upload) => upload.received(session),
            _ => session.received(&self.path(task), known, task.size),
        }
    }

    /// Prepares for several sessions that write ranges. ESTO does not truncate, so an earlier file
    /// is removed, whose end could be beyond that of this one.
    pub(crate) fn clear(&self, session: &mut Session) -> Result<(), RemoteError> {
        match self {
            Self::Upload(upload) => {
                session.begins(&upload.id);
                session.call(&upload.begin()).map(drop)
            }
            Self::Part(part) => session.control.call(&Command::Dele(part.clone())).map(drop),
            Self::Direct | Self::InPlace => Ok(()),
        }
    }
}

impl Session {
    /// Returns the commands that release the uploads that this session has started before and that
    /// are not `in_flight`, because other sessions may have completed them. Called before the
    /// session starts an upload.
    pub(crate) fn releases(&mut self, in_flight: impl Fn(&UploadId) -> bool) -> Vec<(Purpose, Command)> {
        let old: Vec<_> = self.uploads.extract_if(.., |id| !in_flight(id)).collect();
        let suspend = |id| (Purpose::Hint, upload(UploadCommand::Suspend(id)));
        old.into_iter().map(suspend).collect()
    }

    pub(crate) fn begins(&mut self, id: &UploadId) {
        if !self.uploads.contains(id) {
            self.uploads.push(id.clone());
        }
    }

    /// Records that the session has completed or removed an upload.
    pub(crate) fn ends(&mut self, id: &UploadId) {
        self.uploads.retain(|begun| begun != id);
    }
}

fn upload(command: UploadCommand) -> Command {
    Command::Site(SiteCommand::Upload(command))
}

/// The ID of an upload. It is unique for this version of the source, and differs from that of
/// another run's upload at the same time (see [`crate::state::States::claim`]).
fn upload_id(task: &Task) -> UploadId {
    let tag = if task.apart { unique() } else { task.part.unwrap_or_else(unique) };
    let version = format!("{tag:016x} {:?} {:?} {}", task.size, task.modified, task.identity());
    let mut hasher = Hasher::new(Algorithm::Sha256);
    hasher.update(version.as_bytes());
    hasher.update(b" ");
    hasher.update(&task.destination.far_key());
    let number = u128::from_str_radix(&hasher.finish()[..32], 16);
    number.unwrap_or_else(|_| u128::from(unique())).into()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;

    use ropewalk_protocol::path::VirtualPath;
    use ropewalk_protocol::url::Url;

    use super::*;
    use crate::place::{Endpoint, Place};

    fn task(size: u64) -> Task {
        let endpoint = Endpoint::new(&Url::parse("ftp://host/").unwrap());
        let source = Place::Local(VirtualPath::parse(b"/a").unwrap());
        let destination = Place::Remote(Arc::new(endpoint), "/b".into());
        let (modified, mode) = (Some(981_173_106), Some(0o4640));
        Task { size: Some(size), part: Some(7), modified, mode, ..Task::new(0, source, destination) }
    }

    fn plan(task: &Task, resumes: bool) -> UploadPlan {
        let (path, begun) = (task.destination.path(), AtomicBool::new(resumes));
        UploadPlan { id: UploadId::new(b"i").unwrap(), path, size: task.size, begun }
    }

    fn lines(commands: impl IntoIterator<Item = Command>) -> Vec<String> {
        let line =
            |command: Command| String::from_utf8(command.to_line().unwrap()).unwrap().trim_end().to_owned();
        commands.into_iter().map(line).collect()
    }

    #[test]
    fn upload_id_of_another_version_or_tag_differs() {
        let id = upload_id(&task(5));
        assert_eq!((id.as_str().len(), &upload_id(&task(5))), (32, &id));
        assert_ne!(upload_id(&task(6)), id);
        assert_ne!(upload_id(&Task { modified: None, ..task(5) }), id);
        assert_ne!(upload_id(&Task { stamp: 1, ..task(5) }), id);
        assert_ne!(upload_id(&Task { part: Some(8), ..task(5) }), id);
        let apart = || upload_id(&Task { apart: true, ..task(5) });
        assert_ne!(apart(), apart());
    }

    #[test]
    fn upload_is_resumed_by_later_sessions_if_it_is_big() {
        let begin = |plan: &UploadPlan| lines([plan.begin()]).remove(0);
        let small = plan(&task(5), false);
        assert_eq!(begin(&small), "SITE UPLOAD BEGIN i size=5; /b");
        assert_eq!(begin(&small), "SITE UPLOAD BEGIN i size=5; /b");
        let size = SMALL + 1;
        let big = plan(&task(size), false);
        assert_eq!(begin(&big), format!("SITE UPLOAD BEGIN i size={size}; /b"));
        assert_eq!(begin(&big), format!("SITE UPLOAD BEGIN i size={size};resume=1; /b"));
        assert_eq!(begin(&plan(&task(size), true)), format!("SITE UPLOAD BEGIN i size={size};resume=1; /b"));
    }

    #[test]
    fn commit_states_what_the_file_keeps_and_how_it_is_verified() {
        let commit = |preserve, sent, proof| {
            let commands =
                plan(&Task { size: None, ..task(5) }, false).commit(&task(5), preserve, sent, proof);
            lines(commands.into_iter().map(|(_, command)| command))
        };
        assert_eq!(commit(Preserve::default(), None, UploadProof::default()), ["SITE UPLOAD COMMIT i ;"]);
        let all = Preserve { times: true, modes: true, ..Preserve::default() };
        let proof = UploadProof { holes: true, ..UploadProof::of(Algorithm::Adler32, " 1A\r") };
        let expected = "SITE UPLOAD COMMIT i size=9;modify=20010203040506;UNIX.mode=0640;\
                        checksum.adler32=0000001a;holes=1;";
        assert_eq!(commit(all, Some(9), proof), [expected, "SITE CHMOD 4640 /b"]);
    }
}
