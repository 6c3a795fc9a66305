//! What of the operations is for the audit trail: what was refused because somebody may not, and what changes what a
//! session may do.

use ropewalk_protocol::path::VirtualPath;
use ropewalk_protocol::server::{Direction, Failure, Operation, ProfileRequest};

use crate::host::audit::Decision;
use crate::session::job::Job;

/// What is kept of an operation that is about to be carried out.
pub(super) struct Noted {
    command: &'static str,
    path: Option<VirtualPath>,
    /// Whether refusals of the kind [`Failure::Refused`] are decisions as well.
    decides: bool,
    /// It is told when it was permitted, too.
    always: bool,
}

impl Noted {
    pub(super) fn of(operation: &Operation) -> Self {
        use Operation as O;
        let (command, path) = match operation {
            O::Transfer(transfer) => {
                let retrieves = transfer.direction == Direction::Retrieve;
                (if retrieves { "RETR" } else { "STOR" }, Some(&transfer.path))
            }
            O::List(list) => ("LIST", Some(&list.path)),
            O::ListHere { path } => ("MLSC", Some(path)),
            O::ChangeDirectory(path) => ("CWD", Some(path)),
            O::Stat { path, .. } => ("MLST", Some(path)),
            O::Size(path) => ("SIZE", Some(path)),
            O::MakeDirectory(path) => ("MKD", Some(path)),
            O::RemoveDirectory(path) => ("RMD", Some(path)),
            O::Delete(path) => ("DELE", Some(path)),
            O::DeleteTree(path) => ("SITE RDEL", Some(path)),
            O::Rename { from, .. } => ("RNTO", Some(from)),
            O::SetModified { path, .. } => ("MFMT", Some(path)),
            O::ChangeMode { path, .. } => ("SITE CHMOD", Some(path)),
            O::ChangeGroup { path, .. } => ("SITE CHGRP", Some(path)),
            O::Truncate { path, .. } => ("SITE TRNC", Some(path)),
            O::Symlink { link, .. } => ("SITE SYMLINK", Some(link)),
            O::Checksum { path, .. } => ("CKSM", Some(path)),
            O::Ranges(path) => ("SITE RANGES", Some(path)),
            O::ChangeRoot(path) => ("SITE CHROOT", Some(path)),
            O::Restrict(_) => ("SITE RESTRICT", None),
            O::Profile(ProfileRequest::ReadDisk(path) | ProfileRequest::WriteDisk(path)) => {
                ("SITE PROFILE BASELINE", Some(path))
            }
            O::Profile(ProfileRequest::Iperf) => ("SITE PROFILE BASELINE", None),
            O::Profile(ProfileRequest::Start { .. }) => ("SITE PROFILE", None),
            O::DataCredential(_) => ("DCSC", None),
            O::Listen(_) => ("PASV", None),
            O::Connect(_) => ("PORT", None),
            O::SecurityBegin { .. } => ("AUTH", None),
            _ => ("", None),
        };
        let always = matches!(
            operation,
            O::ChangeRoot(_)
                | O::Restrict(_)
                | O::DataCredential(_)
                | O::Profile(
                    ProfileRequest::Start { .. }
                        | ProfileRequest::ReadDisk(_)
                        | ProfileRequest::WriteDisk(_)
                        | ProfileRequest::Iperf
                )
        );
        let decides = always || matches!(operation, O::Listen(_) | O::Connect(_) | O::SecurityBegin { .. });
        Self { command, path: path.cloned(), decides, always }
    }

    pub(super) fn answered(self, job: &Job<'_>, failure: Option<&Failure>) {
        let decision = match failure {
            None if self.always => Decision::Accepted,
            Some(Failure::NotAllowed) => Decision::Refused,
            Some(_) if self.always => Decision::Refused,
            Some(Failure::Refused { .. }) if self.decides => Decision::Refused,
            // What a bearer token does not permit to replace.
            Some(Failure::Refused { code: 553, .. }) => Decision::Refused,
            _ => return,
        };
        let line = job.context.audit_line("command", decision);
        let mut line = line.command(self.command, self.path.as_ref().map(VirtualPath::as_bytes));
        if let Some(failure) = failure {
            line = line.because(failure);
        }
        job.host.audit.write(&line);
    }
}
