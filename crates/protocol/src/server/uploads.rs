//! SITE UPLOAD: the uploads of a session.
//!
//! The session knows the ID and the path of each upload that it has begun, so that further commands
//! need the ID alone. The host has the uploads themselves.

use bstr::BString;

use super::action::*;
use super::failure::Attempt;
use super::finish::{done, failed};
use super::pending::Pending;
use super::session::{Session, Step};
use crate::command::CommandError;
use crate::path::VirtualPath;
use crate::reply::Reply;
use crate::upload::{UploadCommand, UploadId, UploadRequest, UploadStep};

/// Most uploads of a session at a time. Each of them keeps a file open.
const MOST_UPLOADS: usize = 256;

impl Session {
    pub(super) fn upload(&mut self, command: UploadCommand) -> Result<Step, CommandError> {
        if !self.config.replaces {
            return Ok(Step::Reply(Reply::new(504, "Uploads are written in place here.")));
        }
        let (id, step) = match command {
            UploadCommand::Begin { id, parameters, path } => {
                let path = self.resolve_new(&path)?;
                match self.state.uploads.get(&id) {
                    Some(begun) if *begun != path => {
                        let text = "This session has an upload of that ID to another file.";
                        return Ok(Step::Reply(Reply::new(503, text)));
                    }
                    None if self.state.uploads.len() >= MOST_UPLOADS => {
                        let text = "This session has too many uploads: end one of them first.";
                        return Ok(Step::Reply(Reply::new(451, text)));
                    }
                    _ => {}
                }
                return Ok(perform(UploadRequest { id, path, step: UploadStep::Begin(parameters) }));
            }
            UploadCommand::Ranges(id) => (id, UploadStep::Ranges),
            UploadCommand::Commit { id, parameters } => (id, UploadStep::Commit(parameters)),
            UploadCommand::Suspend(id) => (id, UploadStep::Suspend),
            UploadCommand::Discard(id) => (id, UploadStep::Discard),
        };
        let path = self.state.uploads.get(&id).cloned().ok_or(CommandError::NoUpload)?;
        Ok(perform(UploadRequest { id, path, step }))
    }

    /// The upload into which ESTO U sends data, and its file.
    pub(super) fn begun_upload(&self, id: &BString) -> Result<(UploadId, VirtualPath), CommandError> {
        let id = UploadId::new(id).ok_or(CommandError::InvalidArguments)?;
        let path = self.state.uploads.get(&id).cloned().ok_or(CommandError::NoUpload)?;
        Ok((id, path))
    }

    pub(super) fn upload_answered(
        &mut self,
        request: UploadRequest,
        result: Result<Outcome, Failure>,
    ) -> Reply {
        let UploadRequest { id, path, step } = request;
        let reply = match (&step, result) {
            (UploadStep::Begin(_), Ok(Outcome::UploadBegun { bytes, started_over })) => {
                let why = started_over.map(|why| format!(": {why}")).unwrap_or_default();
                Reply::new(250, format!("Upload {id} has {bytes} bytes{why}."))
            }
            (UploadStep::Ranges, Ok(Outcome::Ranges(ranges))) => {
                Reply::indented(250, format!("Ranges of {id}"), [ranges.to_string()], "End.")
            }
            (UploadStep::Commit(_), Ok(Outcome::Size(size))) => {
                Reply::new(250, format!("Upload {id} is complete, {size} bytes."))
            }
            (UploadStep::Suspend | UploadStep::Discard, Ok(Outcome::Done)) => done(),
            (_, result) => return failed(Attempt::Other, result),
        };
        match step {
            UploadStep::Begin(_) => {
                self.state.uploads.insert(id, path);
            }
            UploadStep::Ranges => {}
            UploadStep::Commit(_) | UploadStep::Suspend | UploadStep::Discard => {
                self.state.uploads.remove(&id);
            }
        }
        reply
    }
}

fn perform(request: UploadRequest) -> Step {
    let pending = Pending::Upload(Box::new(request.clone()));
    Step::Perform(Operation::Upload(Box::new(request)), pending)
}
