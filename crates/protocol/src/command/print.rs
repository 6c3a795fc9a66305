//! Prints commands.

use bstr::BString;

use super::{
    Command, DataAuthentication, EpsvArgument, MarkerKind, Password, Placement, Protection, Restart,
    Retrieval, Wrapping,
};
use crate::date::Stamp;
use crate::host_port::{self, Classic, Extended};
use crate::server::{Family, Mode, RepresentationType};
use crate::site::SiteCommand;

/// An argument has a byte that would end the line or change how the peer parses it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a command cannot contain the byte {byte:#04x}, which is in {line:?}")]
pub struct UnprintableCommand {
    pub byte: u8,
    /// The line; for PASS and SITE HOPLOGIN only the verb.
    pub line: BString,
}

impl Command {
    /// Returns the line of this command, without its line end. [`Command::parse`] is the inverse.
    ///
    /// # Errors
    /// An argument contains LF or NUL.
    pub fn to_line(&self) -> Result<Vec<u8>, UnprintableCommand> {
        let mut line = Line(Vec::with_capacity(64));
        self.print(&mut line);
        match line.0.iter().find(|b| matches!(b, b'\n' | 0)) {
            None => Ok(line.0),
            Some(&byte) => {
                let line = match self {
                    Self::Pass(_) => "PASS".into(),
                    Self::Site(SiteCommand::HopLogin(_)) => "SITE HOPLOGIN".into(),
                    _ => line.0.into(),
                };
                Err(UnprintableCommand { byte, line })
            }
        }
    }

    fn print(&self, line: &mut Line) {
        line.word(self.verb());
        match self {
            Self::Abor
            | Self::Cdup
            | Self::Feat
            | Self::Noop
            | Self::Pasv
            | Self::Pwd
            | Self::Quit
            | Self::Syst => {}
            Self::Stru => line.word("F"),
            Self::Abuf(n) | Self::Allo(n) | Self::Pbsz(n) | Self::Sbuf(n) => line.word(n.to_string()),
            Self::Adat(text) | Self::Auth(text) | Self::User(text) => line.word(text),
            Self::Protected(_, text) => line.word(text),
            Self::Appe(path)
            | Self::Cwd(path)
            | Self::Dele(path)
            | Self::Mdtm(path)
            | Self::Mkd(path)
            | Self::Retr(path)
            | Self::Rmd(path)
            | Self::Rnfr(path)
            | Self::Rnto(path)
            | Self::Size(path)
            | Self::Stor(path) => line.word(path),
            Self::Help(path)
            | Self::Lang(path)
            | Self::List(path)
            | Self::Mlsc(path)
            | Self::Mlsd(path)
            | Self::Mlsr(path)
            | Self::Mlst(path)
            | Self::Nlst(path)
            | Self::Stat(path) => line.optional(path.as_ref()),
            Self::Cksm { algorithm, offset, length, path } => {
                line.word(algorithm.name());
                line.word(offset.to_string());
                line.word(length.map_or("-1".to_owned(), |n| n.to_string()));
                line.word(path);
            }
            Self::Dcau(mode) => match mode {
                DataAuthentication::None => line.word("N"),
                DataAuthentication::SelfAuthentication => line.word("A"),
                DataAuthentication::Subject(subject) => {
                    line.word("S");
                    line.word(subject);
                }
            },
            Self::Dcsc { kind, blob } => {
                line.word([*kind]);
                line.optional(blob.as_ref().map(Password::expose));
            }
            Self::Eprt(address) => line.word(Extended(*address).to_string()),
            Self::Epsv(None) | Self::Spas(None) => {}
            Self::Epsv(Some(EpsvArgument::All)) => line.word("ALL"),
            Self::Epsv(Some(EpsvArgument::Family(family))) | Self::Spas(Some(family)) => {
                line.word(match family {
                    Family::V4 => "1",
                    Family::V6 => "2",
                });
            }
            Self::Eret { what, path } => {
                match what {
                    Retrieval::Partial(window) => {
                        line.word("P");
                        line.word(window.offset.to_string());
                        line.word(window.length.to_string());
                    }
                    Retrieval::Module { name, parameters } => line.module(name, parameters),
                }
                line.word(path);
            }
            Self::Esto { place, path } => {
                match place {
                    Placement::Adjusted(offset) => {
                        line.word("A");
                        line.word(offset.to_string());
                    }
                    Placement::Upload(offset) => {
                        line.word("U");
                        line.word(offset.to_string());
                    }
                    Placement::Module { name, parameters } => line.module(name, parameters),
                }
                line.word(path);
            }
            Self::Mfmt { modified, path } => {
                line.word(Stamp(*modified).to_string());
                line.word(path);
            }
            Self::Mode(mode) => line.word(match mode {
                Mode::Stream => "S",
                Mode::ExtendedBlock => "E",
            }),
            Self::Opts(options) => options.print(line),
            Self::Pass(password) => line.word(password.expose()),
            Self::Port(address) => line.word(Classic(*address).to_string()),
            Self::Prot(level) => line.word(level.letter()),
            Self::Rest(Restart::Offset(offset)) => line.word(offset.to_string()),
            Self::Rest(Restart::Ranges(ranges)) => line.word(ranges.to_string()),
            Self::Scks { algorithm, value } => {
                line.word(algorithm.name());
                line.word(value);
            }
            Self::Site(command) => command.print(line),
            Self::Spor(addresses) => line.word(host_port::print_list(addresses)),
            Self::Trev { markers, seconds } => {
                line.word(match markers {
                    MarkerKind::Restart => "RESTART",
                    MarkerKind::Performance => "PERF",
                });
                line.word(seconds.to_string());
            }
            Self::Type(representation) => line.word(match representation {
                RepresentationType::Ascii => "A",
                RepresentationType::Image => "I",
            }),
        }
    }

    /// The verb of this command.
    pub fn verb(&self) -> &'static str {
        match self {
            Self::Abor => "ABOR",
            Self::Abuf(_) => "ABUF",
            Self::Adat(_) => "ADAT",
            Self::Allo(_) => "ALLO",
            Self::Appe(_) => "APPE",
            Self::Auth(_) => "AUTH",
            Self::Cdup => "CDUP",
            Self::Cksm { .. } => "CKSM",
            Self::Cwd(_) => "CWD",
            Self::Dcau(_) => "DCAU",
            Self::Dcsc { .. } => "DCSC",
            Self::Dele(_) => "DELE",
            Self::Eprt(_) => "EPRT",
            Self::Epsv(_) => "EPSV",
            Self::Eret { .. } => "ERET",
            Self::Esto { .. } => "ESTO",
            Self::Feat => "FEAT",
            Self::Help(_) => "HELP",
            Self::Lang(_) => "LANG",
            Self::List(_) => "LIST",
            Self::Mdtm(_) => "MDTM",
            Self::Mfmt { .. } => "MFMT",
            Self::Mkd(_) => "MKD",
            Self::Mlsc(_) => "MLSC",
            Self::Mlsd(_) => "MLSD",
            Self::Mlsr(_) => "MLSR",
            Self::Mlst(_) => "MLST",
            Self::Mode(_) => "MODE",
            Self::Nlst(_) => "NLST",
            Self::Noop => "NOOP",
            Self::Opts(_) => "OPTS",
            Self::Pass(_) => "PASS",
            Self::Pasv => "PASV",
            Self::Pbsz(_) => "PBSZ",
            Self::Port(_) => "PORT",
            Self::Prot(_) => "PROT",
            Self::Protected(Wrapping::Mic, _) => "MIC",
            Self::Protected(Wrapping::Conf, _) => "CONF",
            Self::Protected(Wrapping::Enc, _) => "ENC",
            Self::Pwd => "PWD",
            Self::Quit => "QUIT",
            Self::Rest(_) => "REST",
            Self::Retr(_) => "RETR",
            Self::Rmd(_) => "RMD",
            Self::Rnfr(_) => "RNFR",
            Self::Rnto(_) => "RNTO",
            Self::Sbuf(_) => "SBUF",
            Self::Scks { .. } => "SCKS",
            Self::Site(_) => "SITE",
            Self::Size(_) => "SIZE",
            Self::Spas(_) => "SPAS",
            Self::Spor(_) => "SPOR",
            Self::Stat(_) => "STAT",
            Self::Stor(_) => "STOR",
            Self::Stru => "STRU",
            Self::Syst => "SYST",
            Self::Trev { .. } => "TREV",
            Self::Type(_) => "TYPE",
            Self::User(_) => "USER",
        }
    }
}

impl Protection {
    /// The argument of PROT.
    pub fn letter(self) -> &'static str {
        match self {
            Self::Clear => "C",
            Self::Safe => "S",
            Self::Private => "P",
        }
    }
}

/// A line of words, separated by one space.
pub(crate) struct Line(Vec<u8>);

impl Line {
    pub(crate) fn word(&mut self, word: impl AsRef<[u8]>) {
        if !self.0.is_empty() {
            self.0.push(b' ');
        }
        self.0.extend_from_slice(word.as_ref());
    }

    pub(crate) fn optional(&mut self, word: Option<impl AsRef<[u8]>>) {
        if let Some(word) = word {
            self.word(word);
        }
    }

    fn module(&mut self, name: &[u8], parameters: &[u8]) {
        self.word([name, b"=\"", parameters, b"\""].concat());
    }
}
