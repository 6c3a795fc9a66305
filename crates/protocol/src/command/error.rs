//! The reasons for which a line is not a valid command, and the replies that report them.

use bstr::BString;

use crate::reply::Reply;

/// The line is not a command, or it is a command with invalid arguments. `Display` is the text of
/// GCT's reply.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// The verb is not a word of one to four letters, or arguments are missing.
    #[error("Syntax error in parameters or arguments.")]
    Syntax,
    #[error("Command not supported.")]
    UnknownCommand,
    /// An unknown SITE sub-command.
    #[error("Invalid command.")]
    UnknownSite,
    #[error("Invalid command arguments.")]
    InvalidArguments,
    /// STRU with another argument than F.
    #[error("Syntax error in parameter.")]
    Structure,
    /// TYPE: the whole line.
    #[error("'{0}' unrecognized type.")]
    Type(BString),
    /// MODE: the whole line.
    #[error("'{0}' unrecognized transfer mode.")]
    Mode(BString),
    /// LANG: the whole line.
    #[error("'{0}' unrecognized language.")]
    Language(BString),
    /// REST, or ERET and ESTO without a path.
    #[error("bad parameter.")]
    BadParameter,
    /// ERET and ESTO with an unknown form, or with an offset or a length that is not a number.
    #[error("command failed.")]
    Partial,
    /// PORT and SPOR.
    #[error("Illegal PORT command.")]
    IllegalPort,
    /// EPRT.
    #[error("Malformed argument.")]
    MalformedAddress,
    /// EPRT with an address family other than 1 and 2.
    #[error("Network protocol not supported, use (1,2).")]
    UnknownProtocol,
    /// EPSV with an address family other than 1 and 2.
    #[error("Invalid protocol.")]
    InvalidProtocol,
    /// EPSV with neither a number nor ALL.
    #[error("Invalid network command.")]
    InvalidNetwork,
    #[error("Unknown checksum algorithm requested.")]
    UnknownChecksum,
    #[error("Invalid offset.")]
    InvalidOffset,
    #[error("Invalid length.")]
    InvalidLength,
    /// SBUF and ABUF.
    #[error("Invalid Parameter.")]
    InvalidBuffer,
    /// TREV.
    #[error("Unsupported event.")]
    UnsupportedEvent,
    /// PBSZ: the argument.
    #[error("Bad value for PBSZ: {0}")]
    BufferSize(BString),
    /// PROT: the argument.
    #[error("{0} protection level not supported.")]
    ProtectionLevel(BString),
    #[error("Bad DCAU mode.")]
    DcauMode,
    #[error("DCAU S expected subject.")]
    DcauSubject,
    #[error("Bad Parameter to DCAU.")]
    DcauParameter,
    #[error("OPTS failed.")]
    Options,
    /// The name of a new file or directory contains CR or LF.
    #[error("A name must have neither CR nor LF in it: listings could not tell it.")]
    NameWithLineEnd,
    /// ESTO U or SITE UPLOAD with an ID of which the session has no upload.
    #[error("This session has no upload of that ID: SITE UPLOAD BEGIN has to come first.")]
    NoUpload,
    /// A transfer or a listing without a data channel. The first words are those of GCT.
    #[error("Command failed. : No data channel: send PASV, EPSV or PORT first.")]
    NoDataChannel,
    /// A transfer or a listing after this command, which has closed the data channel, as at GCT's
    /// server: a client that has connected already has done so with the former settings.
    #[error(
        "Can't open data connection: {0} has closed the data channel, which had other settings. Send PASV, EPSV or PORT again."
    )]
    ChannelClosed(&'static str),
}

impl CommandError {
    pub fn code(&self) -> u16 {
        match self {
            Self::UnknownCommand
            | Self::UnknownSite
            | Self::Partial
            | Self::UnknownChecksum
            | Self::InvalidOffset
            | Self::InvalidLength
            | Self::Options
            | Self::NoDataChannel => 500,
            Self::InvalidBuffer | Self::UnsupportedEvent => 502,
            Self::NoUpload => 503,
            Self::ChannelClosed(_) => 425,
            Self::UnknownProtocol => 522,
            Self::ProtectionLevel(_) => 536,
            Self::NameWithLineEnd => 553,
            _ => 501,
        }
    }

    /// The reply to this line.
    pub fn reply(&self) -> Reply {
        Reply::new(self.code(), self.to_string())
    }
}
