//! The audit trail: one line for each decision about permissions, in the log (target `audit`) and,
//! if the settings name one, in a file of JSON objects.
//!
//! Many values come from unknown clients. Both forms escape every character that could end a line
//! or control the terminal on which the line is read. Secrets are never part of a line. A line that
//! cannot be written is reported in the log, and the session continues.

use std::fs::File;
use std::io::Write as _;
use std::net::SocketAddr;
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::RwLock;
use ropewalk_protocol::date::Civil;
use ropewalk_protocol::server::Failure;
use ropewalk_protocol::text::is_harmful;
use serde::Serialize;

use crate::config;
use crate::error::Result;
use crate::host::transfer_log;

/// The longest value in bytes; the rest is cut off.
const LONGEST: usize = 4096;

/// The result of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Decision {
    Accepted,
    Refused,
}

/// One decision. Fields that do not apply are left out.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Line {
    schema: u32,
    /// RFC 3339, in UTC.
    time: String,
    /// `log-in`, `command`.
    pub(crate) event: &'static str,
    pub(crate) decision: Decision,
    pub(crate) session: u64,
    peer: SocketAddr,
    /// `password`, `anonymous`, `gsi` and so on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) mechanism: Option<&'static str>,
    /// A certificate's subject, a principal, a token's subject.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) subject: Option<String>,
    /// The party that vouches for the subject.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) issuer: Option<String>,
    /// The user that the client asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) wanted: Option<String>,
    /// The user of the session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) user: Option<String>,
    /// The user as whom the session works on files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) uid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) command: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) path: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
}

/// The session that a decision is about.
pub(crate) struct Party<'a> {
    pub(crate) session: u64,
    pub(crate) peer: SocketAddr,
    /// The subject that the client has proved, or that the issuer of its token names.
    pub(crate) subject: Option<&'a str>,
    pub(crate) issuer: Option<&'a str>,
    pub(crate) user: Option<&'a str>,
    pub(crate) uid: Option<u32>,
}

impl Line {
    /// A decision about a session, at this moment.
    pub(crate) fn new(party: Party<'_>, event: &'static str, decision: Decision) -> Self {
        let Party { session, peer, subject, issuer, user, uid } = party;
        Self {
            schema: 1,
            time: timestamp(SystemTime::now()),
            event,
            decision,
            session,
            peer,
            mechanism: None,
            subject: subject.map(cut),
            issuer: issuer.map(cut),
            wanted: None,
            user: user.map(str::to_owned),
            uid,
            command: None,
            path: None,
            reason: None,
        }
    }

    pub(crate) fn mechanism(mut self, mechanism: &'static str) -> Self {
        self.mechanism = Some(mechanism);
        self
    }

    /// The user name that the client sent, which can contain any bytes.
    pub(crate) fn wanted(mut self, user: &[u8]) -> Self {
        self.wanted = Some(cut(&String::from_utf8_lossy(user)));
        self
    }

    pub(crate) fn command(mut self, command: &'static str, path: Option<&[u8]>) -> Self {
        self.command = Some(command);
        self.path = path.map(|path| cut(&String::from_utf8_lossy(path)));
        self
    }

    pub(crate) fn because(self, failure: &Failure) -> Self {
        self.reason(&reason(failure))
    }

    pub(crate) fn without_user(mut self) -> Self {
        (self.user, self.uid) = (None, None);
        self
    }

    pub(crate) fn reason(mut self, text: &str) -> Self {
        self.reason = Some(cut(text));
        self
    }

    fn json(&self) -> serde_json::Result<String> {
        let mut line = harmless(&serde_json::to_string(self)?);
        line.push('\n');
        Ok(line)
    }

    fn log(&self) {
        let Self { event, session, peer, mechanism, uid, command, .. } = self;
        // `Debug` escapes the texts.
        let decision = match self.decision {
            Decision::Accepted => "accepted",
            Decision::Refused => "refused",
        };
        tracing::info!(
            target: "audit",
            event, decision, session, %peer, mechanism, subject = self.subject.as_ref().map(debug),
            issuer = self.issuer.as_ref().map(debug), wanted = self.wanted.as_ref().map(debug),
            user = self.user.as_ref().map(debug), uid, command, path = self.path.as_ref().map(debug),
            reason = self.reason.as_ref().map(debug),
        );
    }
}

#[derive(Default)]
pub(crate) struct Audit(RwLock<Option<File>>);

impl Audit {
    pub(crate) fn open(log: &config::Log) -> Result<Self> {
        Ok(Self(RwLock::new(open(log)?)))
    }

    /// Replaces the file, which may have been moved away, or have another name now. `file` comes
    /// from [`open`].
    pub(crate) fn replace(&self, file: Option<File>) {
        *self.0.write() = file;
    }

    pub(crate) fn write(&self, line: &Line) {
        line.log();
        let file = self.0.read();
        let Some(mut file) = file.as_ref() else { return };
        let written = line.json().map_err(std::io::Error::from).and_then(|text| {
            // Each line is one write to a file that is open for appending, so that lines never mix.
            file.write_all(text.as_bytes())
        });
        if let Err(error) = written {
            tracing::error!(%error, "cannot write the audit log");
        }
    }
}

pub(crate) fn open(log: &config::Log) -> Result<Option<File>> {
    log.audit.as_deref().map(transfer_log::open).transpose()
}

/// The text for a failure.
fn reason(failure: &Failure) -> String {
    match failure {
        Failure::LoginDenied(text) | Failure::Busy(text) | Failure::Refused { text, .. } => text.clone(),
        Failure::NotAllowed => "the account's rules do not permit it".into(),
        Failure::System { errno, action } => {
            format!("{action}: {}", std::io::Error::from_raw_os_error(*errno))
        }
        other => format!("{other:?}"),
    }
}

fn cut(text: &str) -> String {
    let end = (0..=LONGEST.min(text.len())).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
    text[..end].to_owned()
}

/// Returns the JSON without characters that affect a terminal.
fn harmless(json: &str) -> String {
    // Characters that JSON has escaped are not among them. Invisible characters are escaped as
    // well, since they would hide a name from a search in the log.
    let unseen = |c: char| matches!(c, '\u{ad}' | '\u{200b}'..='\u{200d}' | '\u{feff}');
    let harmful = |c: char| c >= ' ' && is_harmful(c) || unseen(c);
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        if harmful(c) {
            // All of these characters are in the basic multilingual plane.
            out.push_str(&format!("\\u{:04x}", u32::from(c)));
        } else {
            out.push(c);
        }
    }
    out
}

fn timestamp(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let civil = Civil::from_seconds(i64::try_from(since.as_secs()).unwrap_or(i64::MAX));
    let Civil { year, month, day, hour, minute, second } = civil;
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:06}Z", since.subsec_micros())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::Duration;

    use super::*;

    fn line() -> Line {
        Line {
            schema: 1,
            time: timestamp(UNIX_EPOCH + Duration::from_micros(1_795_290_967_033_379)),
            event: "log-in",
            decision: Decision::Refused,
            session: 7,
            peer: SocketAddr::from(([192, 0, 2, 1], 4000)),
            mechanism: Some("password"),
            subject: None,
            issuer: None,
            wanted: None,
            user: None,
            uid: None,
            command: None,
            path: None,
            reason: None,
        }
    }

    #[test]
    fn audit_line_with_control_characters_is_escaped() {
        let evil = "x\r\n{\"event\":\"log-in\"}\u{1b}[2J\u{9b}1m\u{202e}\u{7f}\0\"\\";
        let line = Line { path: Some(evil.into()), ..line() }.wanted(evil.as_bytes());
        let text = line.json().unwrap();
        assert_eq!(text.matches('\n').count(), 1);
        let harmful = |c: char| c != '\n' && (c.is_control() || c == '\u{202e}');
        assert!(!text.contains(harmful), "{text:?}");
        let back: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(back["wanted"], evil);
        assert_eq!(back["path"], evil);
        assert_eq!(back["decision"], "refused");
        assert_eq!(back["time"], "2026-11-21T19:56:07.033379Z");
    }

    #[test]
    fn audit_value_beyond_limit_is_cut() {
        let line = line().wanted("é".repeat(LONGEST).as_bytes());
        assert_eq!(line.wanted.unwrap().len(), LONGEST);
    }

    #[test]
    fn audit_after_replacement_appends_to_new_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit");
        let log = config::Log { audit: Some(path.clone()), ..config::Log::default() };
        let audit = Audit::open(&log).unwrap();
        audit.write(&line());
        std::fs::rename(&path, directory.path().join("old")).unwrap();
        audit.write(&line());
        audit.replace(super::open(&log).unwrap());
        audit.write(&line());
        assert_eq!(std::fs::read_to_string(directory.path().join("old")).unwrap().lines().count(), 2);
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(
            text.starts_with("{\"schema\":1,\"time\":\"2026-") && text.contains("\"mechanism\":\"password\"")
        );
    }
}
