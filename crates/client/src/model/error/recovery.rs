//! The meaning of an error for the transfer that met it.

use ropewalk_transfer::Failure;

use crate::{FailureKind, RemoteError};

impl Failure for RemoteError {
    fn invalidates_data(&self) -> bool {
        self.invalidates_data()
    }

    fn breaks_session(&self) -> bool {
        self.breaks_session()
    }
}

impl RemoteError {
    /// Another program writes to the source.
    pub(crate) fn is_source_change(&self) -> bool {
        matches!(self, Self::Grew { .. } | Self::SourceChanged { .. })
    }

    /// The data that arrived is wrong or missing: the whole file has to be sent again.
    pub(crate) fn invalidates_data(&self) -> bool {
        // The server expected a certain sum, and has computed another one.
        let refused = matches!(self, Self::Refused { .. }) && self.kind() == FailureKind::ChecksumMismatch;
        refused
            || matches!(
                self,
                Self::ChecksumMismatch { .. }
                    | Self::Grew { .. }
                    | Self::PartVanished { .. }
                    | Self::SizeMismatch { .. }
                    | Self::SourceChanged { .. }
                    | Self::Unresumable { .. }
            )
    }

    /// The server does not accept the restart that it was sent, and will not accept it later.
    pub(crate) fn refuses_restart(&self) -> bool {
        self.refused_command() == Some("REST") && !matches!(self.reply_code(), Some(400..500))
    }

    /// The server does not resume with the data that it has, whatever the connection. A refusal to
    /// rename a file that has arrived, or to report its size or sum, is repeated whatever is sent.
    pub(crate) fn refuses_resumption(&self) -> bool {
        match self.refused_command() {
            Some("REST") => self.refuses_restart(),
            Some("RNFR" | "RNTO" | "SIZE" | "CKSM") | None => false,
            Some(_) => !self.is_transient(),
        }
    }
}
