//! Parses commands.

use std::net::SocketAddr;

use bstr::{BString, ByteSlice};

use super::arguments::{Arguments, number, number32};
use super::{
    ChecksumAlgorithm, Command, CommandError, DataAuthentication, EpsvArgument, MarkerKind, Password,
    Placement, Protection, Restart, Retrieval, Wrapping,
};
use crate::date;
use crate::host_port::{self, HostPortError};
use crate::opts::Options;
use crate::range::RangeSet;
use crate::server::{Family, Mode, RepresentationType, Window};
use crate::site::SiteCommand;

/// Splits a line into its verb in upper case and the text after the verb and one space.
///
/// # Errors
/// The verb is not a word of at most four letters, or the rest of the line contains NUL.
pub(crate) fn split_verb(line: &[u8]) -> Result<(String, &[u8]), CommandError> {
    let (verb, rest) = line.split_once_str(" ").unwrap_or((line, b""));
    if verb.is_empty() && !line.is_empty() {
        return Err(CommandError::UnknownCommand);
    }
    if verb.is_empty() || verb.len() > 4 || !verb.iter().all(u8::is_ascii_alphabetic) || rest.contains(&0) {
        return Err(CommandError::Syntax);
    }
    Ok((verb.to_ascii_uppercase().into_iter().map(char::from).collect(), rest))
}

impl Command {
    /// Parses a line without its line end. No input makes it panic.
    ///
    /// # Errors
    /// The error with which GCT replies to such a line.
    pub fn parse(line: &[u8]) -> Result<Self, CommandError> {
        let (verb, rest) = split_verb(line)?;
        let mut args = Arguments::new(rest);
        Ok(match verb.as_str() {
            "ABOR" => Self::Abor,
            "ABUF" => Self::Abuf(buffer(args)?),
            "ADAT" => Self::Adat(args.text()?),
            "ALLO" => Self::Allo(number(args.word()?).ok_or(CommandError::Syntax)?),
            "APPE" => Self::Appe(args.path()?),
            "AUTH" => Self::Auth(args.text()?),
            "CDUP" => Self::Cdup,
            "CKSM" => checksum(args)?,
            "CONF" => Self::Protected(Wrapping::Conf, args.text()?),
            "CWD" => Self::Cwd(args.path()?),
            "DCAU" => Self::Dcau(data_authentication(args)?),
            "DCSC" => credential(args)?,
            "DELE" => Self::Dele(args.path()?),
            "ENC" => Self::Protected(Wrapping::Enc, args.text()?),
            "EPRT" => Self::Eprt(extended_port(args.word()?)?),
            "EPSV" => Self::Epsv(extended_passive(args)?),
            "ERET" => retrieve(args)?,
            "ESTO" => store(args)?,
            "FEAT" => Self::Feat,
            "HELP" => Self::Help(args.optional_text()),
            "LANG" => Self::Lang(language(line, args)?),
            "LIST" => Self::List(args.optional_path()),
            "MDTM" => Self::Mdtm(args.path()?),
            "MFMT" => {
                let (modified, path) = dated_path(args)?;
                Self::Mfmt { modified, path }
            }
            "MIC" => Self::Protected(Wrapping::Mic, args.text()?),
            "MKD" => Self::Mkd(args.path()?),
            "MLSC" => Self::Mlsc(args.optional_path()),
            "MLSD" => Self::Mlsd(args.optional_path()),
            "MLSR" => Self::Mlsr(args.optional_path()),
            "MLST" => Self::Mlst(args.optional_path()),
            // As in GCT, only the first letter counts.
            "MODE" => Self::Mode(match args.word()?[0].to_ascii_uppercase() {
                b'S' => Mode::Stream,
                b'E' => Mode::ExtendedBlock,
                _ => return Err(CommandError::Mode(line.into())),
            }),
            "NLST" => Self::Nlst(args.optional_path()),
            "NOOP" => Self::Noop,
            "OPTS" => Self::Opts(Options::parse(args)?),
            // An empty password is valid.
            "PASS" => Self::Pass(Password::new(rest)),
            "PASV" => Self::Pasv,
            "PBSZ" => {
                let size = args.last_word()?;
                let valid = number32(size).ok_or_else(|| CommandError::BufferSize(size.into()))?;
                Self::Pbsz(valid.into())
            }
            "PORT" => {
                Self::Port(host_port::parse_classic(args.word()?).map_err(|_| CommandError::IllegalPort)?)
            }
            "PROT" => Self::Prot(protection(args)?),
            "PWD" => Self::Pwd,
            "QUIT" => Self::Quit,
            "REST" => Self::Rest(restart(&args.text()?).ok_or(CommandError::BadParameter)?),
            "RETR" => Self::Retr(args.path()?),
            "RMD" => Self::Rmd(args.path()?),
            "RNFR" => Self::Rnfr(args.path()?),
            "RNTO" => Self::Rnto(args.path()?),
            "SBUF" => Self::Sbuf(buffer(args)?),
            "SCKS" => {
                let algorithm = algorithm(args.word()?)?;
                Self::Scks { algorithm, value: args.word()?.into() }
            }
            "SITE" => Self::Site(SiteCommand::parse(args)?),
            "SIZE" => Self::Size(args.path()?),
            "SPAS" => Self::Spas(if args.is_empty() { None } else { Some(family(args.word()?)?) }),
            "SPOR" => {
                let addresses = host_port::parse_list(&args.text()?);
                Self::Spor(addresses.map_err(|_| CommandError::IllegalPort)?)
            }
            "STAT" => Self::Stat(args.optional_path()),
            "STOR" => Self::Stor(args.path()?),
            "STRU" => match &args.text()?[..] {
                b"F" | b"f" => Self::Stru,
                _ => return Err(CommandError::Structure),
            },
            "SYST" => Self::Syst,
            "TREV" => marker_interval(args)?,
            "TYPE" => Self::Type(match args.word()?[0].to_ascii_uppercase() {
                b'A' => RepresentationType::Ascii,
                b'I' => RepresentationType::Image,
                _ => return Err(CommandError::Type(line.into())),
            }),
            "USER" => Self::User(args.text()?),
            _ => return Err(CommandError::UnknownCommand),
        })
    }
}

fn buffer(args: Arguments<'_>) -> Result<u64, CommandError> {
    number(args.last_word()?).ok_or(CommandError::InvalidBuffer)
}

pub(crate) fn algorithm(name: &[u8]) -> Result<ChecksumAlgorithm, CommandError> {
    name.to_str().ok().and_then(|name| name.parse().ok()).ok_or(CommandError::UnknownChecksum)
}

fn checksum(mut args: Arguments<'_>) -> Result<Command, CommandError> {
    let (name, offset, length) = (args.word()?, args.word()?, args.word()?);
    let path = args.path()?;
    let algorithm = algorithm(name)?;
    let offset = number(offset).ok_or(CommandError::InvalidOffset)?;
    let length = match length {
        b"-1" => None,
        digits => Some(number(digits).ok_or(CommandError::InvalidLength)?),
    };
    Ok(Command::Cksm { algorithm, offset, length, path })
}

fn data_authentication(mut args: Arguments<'_>) -> Result<DataAuthentication, CommandError> {
    let mode = match args.word()? {
        b"N" | b"n" => DataAuthentication::None,
        b"A" | b"a" => DataAuthentication::SelfAuthentication,
        b"S" | b"s" => {
            return args.text().map(DataAuthentication::Subject).map_err(|_| CommandError::DcauSubject);
        }
        _ => return Err(CommandError::DcauMode),
    };
    if args.is_empty() { Ok(mode) } else { Err(CommandError::DcauParameter) }
}

fn credential(mut args: Arguments<'_>) -> Result<Command, CommandError> {
    match args.word()? {
        [kind] if kind.is_ascii_alphabetic() => {
            Ok(Command::Dcsc { kind: *kind, blob: args.optional_text().map(Password::new) })
        }
        _ => Err(CommandError::InvalidArguments),
    }
}

pub(crate) fn extended_port(text: &[u8]) -> Result<SocketAddr, CommandError> {
    host_port::parse_extended(text).map_err(|error| match error {
        HostPortError::UnknownProtocol { .. } => CommandError::UnknownProtocol,
        _ => CommandError::MalformedAddress,
    })
}

fn family(word: &[u8]) -> Result<Family, CommandError> {
    match word {
        b"1" => Ok(Family::V4),
        b"2" => Ok(Family::V6),
        digits if number(digits).is_some() => Err(CommandError::InvalidProtocol),
        _ => Err(CommandError::InvalidNetwork),
    }
}

fn extended_passive(mut args: Arguments<'_>) -> Result<Option<EpsvArgument>, CommandError> {
    if args.is_empty() {
        return Ok(None);
    }
    let word = args.word()?;
    if word.eq_ignore_ascii_case(b"ALL") {
        return Ok(Some(EpsvArgument::All));
    }
    Ok(Some(EpsvArgument::Family(family(word)?)))
}

/// Parses `name="parameters" path`; the parameters may contain spaces.
fn module(text: &[u8]) -> Option<(BString, BString, &[u8])> {
    let (name, rest) = text.split_once_str("=\"")?;
    let (parameters, path) = rest.split_once_str("\" ")?;
    let valid = !name.is_empty() && !name.contains(&b' ') && !path.is_empty();
    valid.then(|| (name.into(), parameters.into(), path))
}

fn retrieve(mut args: Arguments<'_>) -> Result<Command, CommandError> {
    if let Some((name, parameters, path)) = module(&args.text()?) {
        return Ok(Command::Eret { what: Retrieval::Module { name, parameters }, path: path.into() });
    }
    if !matches!(args.word()?, b"P" | b"p") {
        return Err(CommandError::Partial);
    }
    let mut next = || args.word().ok().and_then(number).ok_or(CommandError::Partial);
    let window = Window { offset: next()?, length: next()? };
    let path = args.path().map_err(|_| CommandError::BadParameter)?;
    Ok(Command::Eret { what: Retrieval::Partial(window), path })
}

fn store(mut args: Arguments<'_>) -> Result<Command, CommandError> {
    if let Some((name, parameters, path)) = module(&args.text()?) {
        return Ok(Command::Esto { place: Placement::Module { name, parameters }, path: path.into() });
    }
    let upload = match args.word()? {
        b"A" | b"a" => false,
        b"U" | b"u" => true,
        _ => return Err(CommandError::Partial),
    };
    let offset = args.word().map_err(|_| CommandError::Partial)?;
    let offset = number(offset).ok_or(CommandError::BadParameter)?;
    let path = args.path().map_err(|_| CommandError::BadParameter)?;
    let place = if upload { Placement::Upload(offset) } else { Placement::Adjusted(offset) };
    Ok(Command::Esto { place, path })
}

fn language(line: &[u8], args: Arguments<'_>) -> Result<Option<BString>, CommandError> {
    match args.optional_text() {
        Some(tag) if !tag.eq_ignore_ascii_case(b"EN") => Err(CommandError::Language(line.into())),
        tag => Ok(tag),
    }
}

/// `YYYYMMDDHHMMSS path`
pub(crate) fn dated_path(mut args: Arguments<'_>) -> Result<(i64, BString), CommandError> {
    let date = args.word()?;
    let path = args.path()?;
    Ok((date::parse(date).map_err(|_| CommandError::InvalidArguments)?, path))
}

fn protection(mut args: Arguments<'_>) -> Result<Protection, CommandError> {
    match args.word()? {
        b"C" | b"c" => Ok(Protection::Clear),
        b"S" | b"s" => Ok(Protection::Safe),
        b"P" | b"p" => Ok(Protection::Private),
        other => Err(CommandError::ProtectionLevel(other.into())),
    }
}

/// Parses `n`, or `a-b,c-d` with exclusive ends.
fn restart(text: &[u8]) -> Option<Restart> {
    if let Some(offset) = number(text.trim()) {
        return Some(Restart::Offset(offset));
    }
    let set = RangeSet::parse(text).ok()?;
    Some(if set.is_empty() { Restart::Offset(0) } else { Restart::Ranges(set) })
}

fn marker_interval(mut args: Arguments<'_>) -> Result<Command, CommandError> {
    let (event, seconds) = (args.word()?, args.word()?);
    let markers = if event.eq_ignore_ascii_case(b"RESTART") {
        MarkerKind::Restart
    } else if event.eq_ignore_ascii_case(b"PERF") {
        MarkerKind::Performance
    } else {
        return Err(CommandError::UnsupportedEvent);
    };
    Ok(Command::Trev { markers, seconds: number32(seconds).ok_or(CommandError::Syntax)? })
}
