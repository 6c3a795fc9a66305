//! The transfer log: one line for each transfer, in the format of GCT or as JSON.
//!
//! The host owns the files. Every thread may write; a line that cannot be written is reported in
//! the log.

use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::{Duration, SystemTime};

use bstr::{BString, ByteSlice as _};
use parking_lot::RwLock;
use ropewalk_protocol::date::Stamp;
use ropewalk_protocol::text::is_harmful;
use serde::Serialize;

use crate::config;
use crate::error::{Error, Result};

/// One transfer or listing that has ended.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(crate) start: SystemTime,
    pub(crate) end: SystemTime,
    pub(crate) user: String,
    pub(crate) path: BString,
    /// Socket buffer in bytes, 0 if the system chooses.
    pub(crate) buffer: u64,
    /// Block size in bytes.
    pub(crate) block: u64,
    pub(crate) bytes: u64,
    pub(crate) streams: u32,
    /// The remote end of the data connections, or of the control connection if there were none.
    pub(crate) peer: IpAddr,
    /// The command.
    pub(crate) kind: &'static str,
    /// The code of the reply that the client received.
    pub(crate) code: u16,
    pub(crate) task: Option<BString>,
}

#[derive(Default)]
pub(crate) struct TransferLog(RwLock<Files>);

#[derive(Default)]
struct Files {
    text: Option<File>,
    json: Option<File>,
}

impl TransferLog {
    pub(crate) fn open(log: &config::Log) -> Result<Self> {
        Ok(Self(RwLock::new(Files::open(log)?)))
    }

    /// Opens the files again, which may have been moved away or have other names now.
    pub(crate) fn reopen(&self, log: &config::Log) -> Result<()> {
        let files = Files::open(log)?;
        *self.0.write() = files;
        Ok(())
    }

    pub(crate) fn write(&self, host: &str, record: &Record) {
        let files = self.0.read();
        // Each line is one write to a file that is open for appending, so that lines of several
        // writers never mix.
        if let Some(mut file) = files.text.as_ref()
            && let Err(error) = file.write_all(line(host, record).as_bytes())
        {
            tracing::error!(%error, "cannot write the transfer log");
        }
        if let Some(mut file) = files.json.as_ref() {
            let mut line = json(host, record);
            line.push('\n');
            if let Err(error) = file.write_all(line.as_bytes()) {
                tracing::error!(%error, "cannot write the JSON transfer log");
            }
        }
    }
}

/// Opens a log for appending, and creates it if it does not exist. It shows which user moved which
/// file, so others cannot read it.
pub(crate) fn open(path: &Path) -> Result<File> {
    let file = OpenOptions::new().append(true).create(true).mode(0o640).open(path);
    file.map_err(|source| Error::Log { path: path.to_owned(), source })
}

impl Files {
    fn open(log: &config::Log) -> Result<Self> {
        Ok(Self {
            text: log.transfer_log.as_deref().map(open).transpose()?,
            json: log.transfer_log_json.as_deref().map(open).transpose()?,
        })
    }
}

/// The format of GCT, which accounting programs read.
fn line(host: &str, record: &Record) -> String {
    let mut line = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(
        line,
        "DATE={} HOST={} PROG=ropewalk NL.EVNT=FTP_INFO START={} USER={} FILE={} BUFFER={} BLOCK={} NBYTES={} \
         VOLUME=/ STREAMS={} STRIPES=1 DEST=[{}] TYPE={} CODE={} TASKID={}",
        date(record.end),
        host,
        date(record.start),
        field(record.user.as_bytes()),
        field(&record.path),
        record.buffer,
        record.block,
        record.bytes,
        record.streams,
        record.peer,
        record.kind,
        record.code,
        record.task.as_ref().map_or_else(|| "none".into(), |task| field(task)),
    );
    line
}

fn json(host: &str, record: &Record) -> String {
    #[derive(Serialize)]
    struct Line<'a> {
        schema: u32,
        host: &'a str,
        start: f64,
        end: f64,
        user: &'a str,
        path: String,
        bytes: u64,
        buffer: u64,
        block: u64,
        streams: u32,
        peer: IpAddr,
        command: &'a str,
        code: u16,
        #[serde(skip_serializing_if = "Option::is_none")]
        task: Option<String>,
    }
    let line = Line {
        schema: 1,
        host,
        start: since_epoch(record.start).as_secs_f64(),
        end: since_epoch(record.end).as_secs_f64(),
        user: &record.user,
        path: record.path.to_str_lossy().into_owned(),
        bytes: record.bytes,
        buffer: record.buffer,
        block: record.block,
        streams: record.streams,
        peer: record.peer,
        command: record.kind,
        code: record.code,
        task: record.task.as_ref().map(|task| task.to_str_lossy().into_owned()),
    };
    serde_json::to_string(&line).unwrap_or_else(|error| format!("{{\"schema\":1,\"error\":\"{error}\"}}"))
}

/// The value of one field: names may contain blanks, and fields must not.
fn field(text: &[u8]) -> String {
    printable(text).replace(char::is_whitespace, "?")
}

/// Clients choose names, and must not be able to add lines of their own.
fn printable(text: &[u8]) -> String {
    text.to_str_lossy().chars().map(|c| if is_harmful(c) { '?' } else { c }).collect()
}

fn since_epoch(time: SystemTime) -> Duration {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

/// `YYYYMMDDHHMMSS.uuuuuu`, UTC.
fn date(time: SystemTime) -> String {
    let time = since_epoch(time);
    format!("{}.{:06}", Stamp(i64::try_from(time.as_secs()).unwrap_or(i64::MAX)), time.subsec_micros())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn record() -> Record {
        let start = SystemTime::UNIX_EPOCH + Duration::from_micros(1_795_290_967_033_379);
        Record {
            start,
            end: start + Duration::from_micros(344),
            user: "ftp".into(),
            path: "/p".into(),
            buffer: 131_072,
            block: 262_144,
            bytes: 12,
            streams: 1,
            peer: IpAddr::from([127, 0, 0, 1]),
            kind: "RETR",
            code: 226,
            task: None,
        }
    }

    #[test]
    fn log_line_has_format_of_gct() {
        assert_eq!(
            line("vm", &record()),
            "DATE=20261121195607.033723 HOST=vm PROG=ropewalk NL.EVNT=FTP_INFO START=20261121195607.033379 USER=ftp \
             FILE=/p BUFFER=131072 BLOCK=262144 NBYTES=12 VOLUME=/ STREAMS=1 STRIPES=1 DEST=[127.0.0.1] TYPE=RETR \
             CODE=226 TASKID=none\n"
        );
    }

    #[test]
    fn log_line_with_blanks_in_user_keeps_fields() {
        let record = Record { user: "ada of example".into(), ..record() };
        assert!(line("vm", &record).contains(" USER=ada?of?example FILE=/p "));
    }

    #[test]
    fn log_line_with_control_characters_stays_one_line() {
        let record = Record { path: "/a\nDATE=".into(), task: Some("x\r\ny".into()), ..record() };
        assert_eq!(line("vm", &record).lines().count(), 1);
        let fields = |record: &Record| line("vm", record).split_whitespace().count();
        let forged =
            Record { path: "/a NBYTES=1".into(), task: Some("x\u{a0}CODE=226".into()), ..record.clone() };
        assert_eq!(fields(&forged), fields(&record));
        let parsed: serde_json::Value = serde_json::from_str(&json("vm", &record)).unwrap();
        assert_eq!(parsed["path"], "/a\nDATE=");
        assert_eq!(json("vm", &record).lines().count(), 1);
    }

    #[test]
    fn log_after_reopening_writes_to_new_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let config = config::Log {
            transfer_log: Some(path.clone()),
            transfer_log_json: None,
            ..config::Log::default()
        };
        let log = TransferLog::open(&config).unwrap();
        log.write("vm", &record());
        std::fs::rename(&path, directory.path().join("log.1")).unwrap();
        log.reopen(&config).unwrap();
        log.write("vm", &record());
        assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count(), 1);
    }
}
