//! SITE sub-commands (RFC 959 section 4.1.3, GFD.20, and those of GCT and Ropewalk).

use std::net::SocketAddr;

use bstr::{BString, ByteSlice};

use crate::command::arguments::{Arguments, number};
use crate::command::print::Line;
use crate::command::{ChecksumAlgorithm, CommandError, parse};
use crate::data_key::DataKey;
use crate::date::{self, Stamp};
use crate::hop_login::HopLogin;
use crate::host_port::Extended;
use crate::one_port::Token;
use crate::profiling::ProfileCommand;
use crate::scitag::SciTagCommand;
use crate::slots::SlotsCommand;
use crate::space::SpaceCommand;
use crate::upload::UploadCommand;
use crate::usage::UsageCommand;
use crate::{facts, streams};

/// A SITE sub-command of GCT, or one of Ropewalk ([`SiteCommand::DataKey`],
/// [`SiteCommand::HopLogin`], [`SiteCommand::OnePort`], [`SiteCommand::Profile`],
/// [`SiteCommand::Ranges`], [`SiteCommand::SciTag`], [`SiteCommand::Slots`],
/// [`SiteCommand::Space`], [`SiteCommand::Streams`], [`SiteCommand::Upload`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SiteCommand {
    AuthzAssert(BString),
    /// SBUF or BUFSIZE: size of the send and receive buffers in bytes.
    Buffers(u64),
    Chgrp {
        group: BString,
        path: BString,
    },
    /// `mode` are permission bits, at most 0o7777.
    Chmod {
        mode: u32,
        path: BString,
    },
    Chroot(BString),
    /// `key="value";...`, unparsed.
    ClientInfo(BString),
    /// Ropewalk extension: the key of the next data channel; `None` removes the key. See
    /// [`crate::data_key`].
    DataKey(Option<DataKey>),
    Dsi(BString),
    /// Test aid: this verb fails from now on.
    Fault(BString),
    Help(Option<BString>),
    /// Ropewalk extension: how a relay logs in at a server behind it. See [`crate::hop_login`].
    HopLogin(HopLogin),
    Http(BString),
    /// Ropewalk extension: the next data connections go to a control port. Without an argument, to
    /// that of this server, which returns a token; otherwise this server connects to the address of
    /// another control port with the token. See [`crate::one_port`].
    OnePort(Option<(Token, SocketAddr)>),
    /// Ropewalk extension: measurements on the server's host. See [`crate::profiling`].
    Profile(ProfileCommand),
    /// Ropewalk extension: the ranges that an interrupted upload to this path left on disk.
    Ranges(BString),
    Rdel(BString),
    /// RETRBUFSIZE, RBUFSZ, RBUFSIZ: size in bytes.
    ReceiveBuffer(u64),
    Restrict(BString),
    /// Ropewalk extension: the experiment and activity of the next data connections. See
    /// [`crate::scitag`].
    SciTag(SciTagCommand),
    /// STORBUFSIZE, SBUFSZ, SBUFSIZ: size in bytes.
    SendBuffer(u64),
    SetDiskStack(BString),
    SetNetStack(BString),
    Sharing(BString),
    /// Ropewalk extension: reservations of permits for transfers and of a rate. See
    /// [`crate::slots`].
    Slots(SlotsCommand),
    /// Ropewalk extension: reservations of bytes. See [`crate::space`].
    Space(SpaceCommand<Option<BString>>),
    /// Attributes of the next upload.
    StorAttr(StoreAttributes),
    /// Ropewalk extension: number of streams of the session's transfers, at most
    /// [`MAX_STREAMS`](crate::streams::MAX_STREAMS), also of the transfer in progress. See
    /// [`crate::streams`].
    Streams(u32),
    /// `SITE SYMLINK target link`. A target with a space is in double quotes, which only Ropewalk
    /// servers support.
    Symlink {
        target: BString,
        link: BString,
    },
    SymlinkFrom(BString),
    SymlinkTo(BString),
    TaskId(BString),
    /// TRNC: the length precedes the path.
    Truncate {
        length: u64,
        path: BString,
    },
    Upas(BString),
    /// Ropewalk extension: an upload with its own name. See [`crate::upload`].
    Upload(UploadCommand),
    Uprt(BString),
    /// OSG: the space of a directory. See [`crate::usage`].
    Usage(UsageCommand),
    /// `modified` is in seconds since 1970.
    Utime {
        modified: i64,
        path: BString,
    },
    Version,
    WhoAmI,
}

/// SITE STORATTR. Fields that are `None` do not change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreAttributes {
    /// `modify`: the modification time to set, in seconds since 1970.
    pub modified: Option<i64>,
    /// `checksum.ALGORITHM`: the expected checksum of the file, as the client wrote it.
    pub checksum: Option<(ChecksumAlgorithm, BString)>,
}

impl SiteCommand {
    pub(crate) fn parse(mut args: Arguments<'_>) -> Result<Self, CommandError> {
        let verb = args.word()?.to_ascii_uppercase();
        Ok(match verb.as_slice() {
            b"AUTHZ_ASSERT" => Self::AuthzAssert(args.text()?),
            b"BUFSIZE" | b"SBUF" => Self::Buffers(buffer(args)?),
            b"CHGRP" => {
                let group = args.word()?.into();
                Self::Chgrp { group, path: args.path()? }
            }
            b"CHMOD" => {
                let mode = args.word()?;
                let path = args.path()?;
                Self::Chmod { mode: octal(mode).ok_or(CommandError::InvalidArguments)?, path }
            }
            b"CHROOT" => Self::Chroot(args.path()?),
            b"CLIENTINFO" => Self::ClientInfo(args.text()?),
            b"DATAKEY" if none(args) => Self::DataKey(None),
            b"DATAKEY" => Self::DataKey(Some(DataKey::parse(args).ok_or(CommandError::InvalidArguments)?)),
            b"DSI" => Self::Dsi(args.text()?),
            b"FAULT" => Self::Fault(args.text()?),
            b"HELP" => Self::Help(args.optional_text()),
            b"HOPLOGIN" => Self::HopLogin(HopLogin::parse(args)?),
            b"HTTP" => Self::Http(args.text()?),
            b"ONEPORT" if args.is_empty() => Self::OnePort(None),
            b"ONEPORT" => {
                let token = Token::parse(args.word()?).ok_or(CommandError::InvalidArguments)?;
                Self::OnePort(Some((token, parse::extended_port(args.last_word()?)?)))
            }
            b"PROFILE" => Self::Profile(ProfileCommand::parse(args).ok_or(CommandError::InvalidArguments)?),
            b"RANGES" => Self::Ranges(args.path()?),
            b"RDEL" => Self::Rdel(args.path()?),
            b"RETRBUFSIZE" | b"RBUFSZ" | b"RBUFSIZ" => Self::ReceiveBuffer(buffer(args)?),
            b"RESTRICT" => Self::Restrict(args.text()?),
            b"STORBUFSIZE" | b"SBUFSZ" | b"SBUFSIZ" => Self::SendBuffer(buffer(args)?),
            b"SCITAG" => Self::SciTag(SciTagCommand::parse(args).ok_or(CommandError::InvalidArguments)?),
            b"SETDISKSTACK" => Self::SetDiskStack(args.text()?),
            b"SETNETSTACK" => Self::SetNetStack(args.text()?),
            b"SHARING" => Self::Sharing(args.text()?),
            b"SLOTS" => Self::Slots(SlotsCommand::parse(args)?),
            b"SPACE" => Self::Space(SpaceCommand::parse(args)?),
            b"STORATTR" => Self::StorAttr(StoreAttributes::parse(&args.text()?)?),
            b"STREAMS" => Self::Streams(streams::number(args).ok_or(CommandError::InvalidArguments)?),
            b"SYMLINK" => {
                let target = args.quoted()?;
                Self::Symlink { target, link: args.path()? }
            }
            b"SYMLINKFROM" => Self::SymlinkFrom(args.path()?),
            b"SYMLINKTO" => Self::SymlinkTo(args.path()?),
            b"TASKID" => Self::TaskId(args.text()?),
            b"TRNC" => {
                let length = args.word()?;
                let path = args.path()?;
                Self::Truncate { length: number(length).ok_or(CommandError::InvalidLength)?, path }
            }
            b"UPLOAD" => Self::Upload(UploadCommand::parse(args)?),
            b"UPAS" => Self::Upas(args.text()?),
            b"UPRT" => Self::Uprt(args.text()?),
            b"USAGE" => Self::Usage(UsageCommand::parse(args)?),
            b"UTIME" => {
                let (modified, path) = parse::dated_path(args)?;
                Self::Utime { modified, path }
            }
            b"VERSION" if args.is_empty() => Self::Version,
            b"WHOAMI" if args.is_empty() => Self::WhoAmI,
            b"VERSION" | b"WHOAMI" => return Err(CommandError::InvalidArguments),
            _ => return Err(CommandError::UnknownSite),
        })
    }

    pub(crate) fn print(&self, line: &mut Line) {
        line.word(self.verb());
        match self {
            Self::AuthzAssert(text)
            | Self::ClientInfo(text)
            | Self::Dsi(text)
            | Self::Fault(text)
            | Self::Http(text)
            | Self::Restrict(text)
            | Self::SetDiskStack(text)
            | Self::SetNetStack(text)
            | Self::Sharing(text)
            | Self::TaskId(text)
            | Self::Upas(text)
            | Self::Uprt(text) => line.word(text),
            Self::Chroot(path)
            | Self::Ranges(path)
            | Self::Rdel(path)
            | Self::SymlinkFrom(path)
            | Self::SymlinkTo(path) => line.word(path),
            Self::Buffers(n) | Self::ReceiveBuffer(n) | Self::SendBuffer(n) => line.word(n.to_string()),
            Self::Streams(n) => line.word(n.to_string()),
            Self::Profile(command) => line.word(command.print()),
            Self::Upload(command) => line.word(command.print()),
            Self::Slots(command) => line.word(command.print()),
            Self::Space(command) => line.word(command.print()),
            Self::Usage(command) => line.word(command.print()),
            Self::SciTag(command) => line.optional(command.print().as_ref()),
            Self::OnePort(None) => {}
            Self::OnePort(Some((token, address))) => {
                line.word(token.to_string());
                line.word(Extended(*address).to_string());
            }
            Self::DataKey(None) => line.word("NONE"),
            Self::DataKey(Some(key)) => line.word(key.print().as_bytes()),
            Self::Chgrp { group, path } => {
                line.word(group);
                line.word(path);
            }
            Self::Chmod { mode, path } => {
                line.word(format!("{mode:04o}"));
                line.word(path);
            }
            Self::Help(verb) => line.optional(verb.as_ref()),
            Self::HopLogin(login) => {
                line.word(login.print_public());
                line.word(login.secret.expose());
            }
            Self::StorAttr(attributes) => line.word(attributes.print()),
            Self::Symlink { target, link } => {
                if target.contains(&b' ') || target.starts_with(b"\"") {
                    line.word([b"\"", target.replace("\"", "\"\"").as_slice(), b"\""].concat());
                } else {
                    line.word(target);
                }
                line.word(link);
            }
            Self::Truncate { length, path } => {
                line.word(length.to_string());
                line.word(path);
            }
            Self::Utime { modified, path } => {
                line.word(Stamp(*modified).to_string());
                line.word(path);
            }
            Self::Version | Self::WhoAmI => {}
        }
    }

    /// The sub-command after SITE.
    pub fn verb(&self) -> &'static str {
        match self {
            Self::AuthzAssert(_) => "AUTHZ_ASSERT",
            Self::Buffers(_) => "SBUF",
            Self::Chgrp { .. } => "CHGRP",
            Self::Chmod { .. } => "CHMOD",
            Self::Chroot(_) => "CHROOT",
            Self::ClientInfo(_) => "CLIENTINFO",
            Self::DataKey(_) => "DATAKEY",
            Self::Dsi(_) => "DSI",
            Self::Fault(_) => "FAULT",
            Self::Help(_) => "HELP",
            Self::HopLogin(_) => "HOPLOGIN",
            Self::Http(_) => "HTTP",
            Self::OnePort(_) => "ONEPORT",
            Self::Profile(_) => "PROFILE",
            Self::Ranges(_) => "RANGES",
            Self::Rdel(_) => "RDEL",
            Self::ReceiveBuffer(_) => "RETRBUFSIZE",
            Self::Restrict(_) => "RESTRICT",
            Self::SciTag(_) => "SCITAG",
            Self::SendBuffer(_) => "STORBUFSIZE",
            Self::SetDiskStack(_) => "SETDISKSTACK",
            Self::SetNetStack(_) => "SETNETSTACK",
            Self::Sharing(_) => "SHARING",
            Self::Slots(_) => "SLOTS",
            Self::Space(_) => "SPACE",
            Self::StorAttr(_) => "STORATTR",
            Self::Streams(_) => "STREAMS",
            Self::Symlink { .. } => "SYMLINK",
            Self::SymlinkFrom(_) => "SYMLINKFROM",
            Self::SymlinkTo(_) => "SYMLINKTO",
            Self::TaskId(_) => "TASKID",
            Self::Truncate { .. } => "TRNC",
            Self::Upas(_) => "UPAS",
            Self::Upload(_) => "UPLOAD",
            Self::Uprt(_) => "UPRT",
            Self::Usage(_) => "USAGE",
            Self::Utime { .. } => "UTIME",
            Self::Version => "VERSION",
            Self::WhoAmI => "WHOAMI",
        }
    }
}

fn buffer(args: Arguments<'_>) -> Result<u64, CommandError> {
    number(args.last_word()?).ok_or(CommandError::Syntax)
}

/// Whether the only argument is NONE.
fn none(mut args: Arguments<'_>) -> bool {
    args.word().is_ok_and(|word| word.eq_ignore_ascii_case(b"NONE")) && args.is_empty()
}

pub(crate) fn octal(digits: &[u8]) -> Option<u32> {
    if digits.is_empty() || digits.len() > 5 || !digits.iter().all(|d| (b'0'..=b'7').contains(d)) {
        return None;
    }
    let mode = digits.iter().fold(0, |n, d| n * 8 + u32::from(d - b'0'));
    (mode <= 0o7777).then_some(mode)
}

impl StoreAttributes {
    fn parse(text: &[u8]) -> Result<Self, CommandError> {
        let mut attributes = Self::default();
        for assignment in text.split_str(";").map(|a| a.trim()).filter(|a| !a.is_empty()) {
            let (key, value) = assignment.split_once_str("=").ok_or(CommandError::InvalidArguments)?;
            let key = key.to_ascii_lowercase();
            let value = facts::decode(value);
            if key == b"modify" {
                attributes.modified = Some(date::parse(&value).map_err(|_| CommandError::InvalidArguments)?);
            } else if let Some(name) = key.strip_prefix(b"x.").unwrap_or(&key).strip_prefix(b"checksum.") {
                attributes.checksum = Some((parse::algorithm(name)?, value));
            }
            // Like GCT, the server ignores other attributes.
        }
        Ok(attributes)
    }

    fn print(&self) -> Vec<u8> {
        let mut text = Vec::new();
        if let Some(modified) = self.modified {
            text.extend_from_slice(format!("modify={};", Stamp(modified)).as_bytes());
        }
        if let Some((algorithm, value)) = &self.checksum {
            let name = algorithm.name().to_ascii_lowercase();
            text.extend_from_slice(format!("checksum.{name}=").as_bytes());
            text.extend_from_slice(facts::encode(value).as_bytes());
            text.push(b';');
        }
        if text.is_empty() {
            text.push(b';');
        }
        text
    }
}
