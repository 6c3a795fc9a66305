//! The purposes of commands in flight.

/// The purpose of a command that a server has been sent, which decides what its reply means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A refusal does not matter: ALLO, or DELE of something that may not be there.
    Hint,
    /// MLST of the file that will be replaced. Often there is none.
    Replaced,
    /// SCKS: the checksum that the server is to expect.
    Expect,
    /// SITE UPLOAD BEGIN. A server that refuses it refuses the transfer into the upload as well.
    Begin,
    /// REST.
    Restart,
    /// STOR, ESTO, RETR or ERET.
    Transfer,
    /// CKSM of what has arrived, or of the source.
    Checksum,
    /// SIZE of what has arrived.
    Size,
    /// MLST of the source after all of it has come: whether it is still the file that it was.
    Version,
    /// RNFR.
    RenameFrom,
    /// RNTO.
    RenameTo,
    /// SITE UPLOAD COMMIT: the server verifies the file and gives it its attributes and its name.
    Commit,
    /// Times and modes. A refusal is reported; the file is complete all the same.
    Attribute,
}

impl Purpose {
    /// The verb for messages about a refusal; `side` is the end that refused.
    pub fn verb(self, side: crate::Side) -> &'static str {
        match self {
            Self::Hint => "ALLO",
            Self::Replaced | Self::Version => "MLST",
            Self::Expect => "SCKS",
            Self::Begin => "SITE UPLOAD BEGIN",
            Self::Restart => "REST",
            Self::Transfer if side == crate::Side::Source => "RETR",
            Self::Transfer => "STOR",
            Self::Checksum => "CKSM",
            Self::Size => "SIZE",
            Self::RenameFrom => "RNFR",
            Self::RenameTo => "RNTO",
            Self::Commit => "SITE UPLOAD COMMIT",
            Self::Attribute => "SITE",
        }
    }
}
