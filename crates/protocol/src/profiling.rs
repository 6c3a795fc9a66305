//! `SITE PROFILE`, a Ropewalk extension: the server measures its host while a client's transfers
//! run.
//!
//! `START [seconds]` starts a measurement, which ends after `seconds` at the latest. `CLOCK`
//! returns the server's time, with which a client aligns the samples of two hosts. `STOP` ends the
//! measurement. `FETCH` sends the result over a data channel, like a listing. With `START RAW` (or
//! `START seconds RAW`) the server also keeps the output files of the measuring tools; the reply to
//! `STOP` lists their names, and `FETCH name` sends one of them.
//!
//! `BASELINE` measures for a few seconds the performance of one component of the server's host:
//! `READ path` the disk of a file, `WRITE path` the disk of a file that is to be created, and `CPU`
//! checksums and encryption on one processor. `IPERF` starts an iperf3 server for one test, and
//! returns its port. All replies are final replies with code 250, except for those to `FETCH`,
//! which are like those to a transfer.

use bstr::{BString, ByteSlice};

use crate::command::arguments::{Arguments, number32};
use crate::reply::Reply;

/// The arguments of `SITE PROFILE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProfileCommand {
    /// If `seconds` is `None`, the measurement runs for as long as the server allows. If `raw` is
    /// true, the output files of the tools are kept.
    Start {
        seconds: Option<u32>,
        raw: bool,
    },
    Clock,
    Stop,
    /// Fetches the profile, or one of the output files of the tools.
    Fetch(Option<BString>),
    Baseline(Baseline),
}

/// A component of the server's host that is measured separately.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Baseline {
    /// The disk of this file: read without the page cache.
    Read(BString),
    /// The disk on which this file would be created: measured with a temporary file next to it.
    Write(BString),
    /// Checksums and encryption.
    Processor,
    /// One test of iperf3, in which the server runs the iperf3 server.
    Iperf,
}

/// Whether this is a valid name of an output file. Such a name can be used in a path, and cannot
/// lead to another directory.
pub fn is_raw_name(name: &[u8]) -> bool {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b".-_".contains(byte);
    (1..=64).contains(&name.len()) && name.iter().all(plain) && name[0] != b'.'
}

/// Most names in one reply.
const MOST_RAW: usize = 16;

/// The reply to any `SITE PROFILE` command but `FETCH`.
#[derive(Clone, Debug, PartialEq)]
pub enum ProfileAnswer {
    /// The measurement ends by itself after this time.
    Started { seconds: u32 },
    /// The time in seconds since 1970.
    Clock(f64),
    /// The size of the profile that can be fetched, and the names of the output files.
    Stopped { bytes: u64, raw: Vec<String> },
    /// Throughput of a disk; `direct` if it was measured without the page cache.
    Disk { bytes_per_second: f64, direct: bool },
    /// Throughput of one processor, in bytes per second.
    Processor { checksum: f64, encryption: f64 },
    /// The port on which iperf3 listens.
    Iperf { port: u16 },
}

impl ProfileCommand {
    pub(crate) fn parse(mut args: Arguments<'_>) -> Option<Self> {
        let word = args.word().ok()?.to_ascii_uppercase();
        let command = match word.as_slice() {
            b"START" => {
                let (mut seconds, mut raw) = (None, false);
                if !args.is_empty() {
                    let mut word = args.word().ok()?;
                    if word.first().is_some_and(u8::is_ascii_digit) {
                        seconds = Some(number32(word).filter(|seconds| *seconds > 0)?);
                        word = if args.is_empty() { b"" } else { args.word().ok()? };
                    }
                    raw = word.eq_ignore_ascii_case(b"RAW");
                    if !raw && (!word.is_empty() || seconds.is_none()) {
                        return None;
                    }
                }
                Self::Start { seconds, raw }
            }
            b"CLOCK" => Self::Clock,
            b"STOP" => Self::Stop,
            b"FETCH" if args.is_empty() => Self::Fetch(None),
            b"FETCH" => Self::Fetch(Some(args.word().ok().filter(|name| is_raw_name(name))?.into())),
            b"BASELINE" => match args.word().ok()?.to_ascii_uppercase().as_slice() {
                b"READ" => return args.path().ok().map(|path| Self::Baseline(Baseline::Read(path))),
                b"WRITE" => return args.path().ok().map(|path| Self::Baseline(Baseline::Write(path))),
                b"CPU" => Self::Baseline(Baseline::Processor),
                b"IPERF" => Self::Baseline(Baseline::Iperf),
                _ => return None,
            },
            _ => return None,
        };
        args.is_empty().then_some(command)
    }

    pub(crate) fn print(&self) -> BString {
        let with = |words: &str, rest: &BString| {
            let mut line = BString::from(words);
            line.extend_from_slice(rest);
            line
        };
        match self {
            Self::Start { seconds, raw } => {
                let seconds = seconds.map(|seconds| format!(" {seconds}")).unwrap_or_default();
                format!("START{seconds}{}", if *raw { " RAW" } else { "" }).into()
            }
            Self::Clock => "CLOCK".into(),
            Self::Stop => "STOP".into(),
            Self::Fetch(None) => "FETCH".into(),
            Self::Fetch(Some(name)) => with("FETCH ", name),
            Self::Baseline(Baseline::Read(path)) => with("BASELINE READ ", path),
            Self::Baseline(Baseline::Write(path)) => with("BASELINE WRITE ", path),
            Self::Baseline(Baseline::Processor) => "BASELINE CPU".into(),
            Self::Baseline(Baseline::Iperf) => "BASELINE IPERF".into(),
        }
    }
}

impl ProfileAnswer {
    const CODE: u16 = 250;

    pub fn to_reply(&self) -> Reply {
        let text = match self {
            Self::Started { seconds } => format!("Profiling {seconds} seconds at most."),
            Self::Clock(time) => format!("Clock {time:.6}"),
            Self::Stopped { bytes, raw } if raw.is_empty() => format!("Profile {bytes} bytes."),
            Self::Stopped { bytes, raw } => format!("Profile {bytes} bytes, raw {}", raw.join(" ")),
            Self::Disk { bytes_per_second, direct } => {
                format!("Disk {bytes_per_second:.0} bytes/s {}", if *direct { "direct" } else { "cached" })
            }
            Self::Processor { checksum, encryption } => {
                format!("Processor {checksum:.0} bytes/s of checksums, {encryption:.0} bytes/s of encryption")
            }
            Self::Iperf { port } => format!("Iperf port {port}"),
        };
        Reply::new(Self::CODE, text)
    }

    /// Returns `None` if the reply is not such an answer.
    pub fn from_reply(reply: &Reply) -> Option<Self> {
        if reply.code() != Self::CODE {
            return None;
        }
        let text = reply.text().to_str().ok()?.trim();
        let (word, rest) = text.split_once(' ')?;
        let mut words = rest.split(' ');
        let number = words.next()?;
        let rate = |number: &str| number.parse().ok().filter(|rate: &f64| rate.is_finite() && *rate >= 0.0);
        match word {
            "Profiling" => Some(Self::Started { seconds: number.parse().ok()? }),
            "Clock" => Some(Self::Clock(number.parse().ok().filter(|time: &f64| time.is_finite())?)),
            "Profile" => {
                let raw = words.skip_while(|word| *word != "raw").skip(1);
                let raw: Vec<String> = raw.take(MOST_RAW).map(str::to_owned).collect();
                let sound = raw.iter().all(|name| is_raw_name(name.as_bytes()));
                sound.then_some(Self::Stopped { bytes: number.parse().ok()?, raw })
            }
            "Disk" => {
                Some(Self::Disk { bytes_per_second: rate(number)?, direct: words.nth(1) == Some("direct") })
            }
            "Processor" => {
                Some(Self::Processor { checksum: rate(number)?, encryption: rate(words.nth(3)?)? })
            }
            "Iperf" if number == "port" => Some(Self::Iperf { port: words.next()?.parse().ok()? }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profile_commands_are_parsed_and_printed() {
        let read = |text: &[u8]| ProfileCommand::parse(Arguments::new(text));
        let start = |seconds, raw| Some(ProfileCommand::Start { seconds, raw });
        assert_eq!(read(b"start 30"), start(Some(30), false));
        assert_eq!(read(b"START"), start(None, false));
        assert_eq!((read(b"START raw"), read(b"START 5 RAW")), (start(None, true), start(Some(5), true)));
        assert_eq!(read(b"clock"), Some(ProfileCommand::Clock));
        assert_eq!(read(b"fetch sar"), Some(ProfileCommand::Fetch(Some("sar".into()))));
        let path = Baseline::Read(" a b".into());
        assert_eq!(read(b"baseline read  a b"), Some(ProfileCommand::Baseline(path)));
        for wrong in [
            &b""[..],
            b"START 0",
            b"START x",
            b"START 1 2",
            b"START RAW 5",
            b"STOP 1",
            b"START 99999999999",
            b"GO",
            b"FETCH ../x",
            b"FETCH .x",
            b"FETCH a b",
            b"BASELINE",
            b"BASELINE READ",
            b"BASELINE CPU 1",
            b"BASELINE MEMORY",
        ] {
            assert_eq!(read(wrong), None, "{}", wrong.as_bstr());
        }
    }

    #[test]
    fn profile_answers_printed_are_parsed_back() {
        for answer in [
            ProfileAnswer::Started { seconds: 30 },
            ProfileAnswer::Clock(1_732_263_165.25),
            ProfileAnswer::Stopped { bytes: 12, raw: Vec::new() },
            ProfileAnswer::Stopped { bytes: 12, raw: vec!["sar".into(), "perf.txt".into()] },
            ProfileAnswer::Disk { bytes_per_second: 5e9, direct: true },
            ProfileAnswer::Disk { bytes_per_second: 1.0, direct: false },
            ProfileAnswer::Processor { checksum: 2e10, encryption: 3e9 },
            ProfileAnswer::Iperf { port: 5201 },
        ] {
            assert_eq!(ProfileAnswer::from_reply(&answer.to_reply()), Some(answer));
        }
        for wrong in [
            "",
            "Clock",
            "Clock nan",
            "Clock inf",
            "Profile -1",
            "Profiling x seconds",
            "OK.",
            "Disk nan bytes/s direct",
            "Disk -1 x",
            "Processor 1",
            "Iperf port 70000",
            "Profile 1 bytes, raw ../x",
        ] {
            assert_eq!(ProfileAnswer::from_reply(&Reply::new(250, wrong)), None, "{wrong}");
        }
        assert_eq!(ProfileAnswer::from_reply(&Reply::new(550, "Clock 1")), None);
    }
}
