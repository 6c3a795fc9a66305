//! The description of a job: what it copies, and how.
//!
//! A [`JobSpec`] is serialised as a JSON object with the version of its form, so that a queue can
//! keep it and another program can write it. Secrets stay out of it: passwords (those of URLs,
//! too), passphrases and the functions that ask for them are not serialised, and the program that
//! reads a job sets them again. A member that is left out has the default of `ropewalk cp`, and an
//! unknown member is an error.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

use crate::model::options::{Options, Pair};

/// The version of the serialised form of [`JobSpec`]. It grows if a reader of the previous version
/// would misunderstand the next one.
pub const JOB_SCHEMA: u32 = 1;

/// The pairs that a job copies, and its options.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(from = "Document", into = "Document")]
#[non_exhaustive]
pub struct JobSpec {
    pub pairs: Vec<Pair>,
    /// Without a `bandwidth` of their own: the limit on the rate and the memory for buffers are the
    /// client's, see [`crate::ClientLimits`].
    pub options: Options,
}

impl JobSpec {
    /// A job with the defaults of `ropewalk cp`.
    pub fn new(pairs: Vec<Pair>) -> Self {
        Self { pairs, options: Options::default() }
    }

    /// The same with other options.
    #[must_use]
    pub fn with_options(self, options: Options) -> Self {
        Self { options, ..self }
    }
}

/// The serialised form.
#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Document {
    #[serde(deserialize_with = "known_schema")]
    schema: u32,
    pairs: Vec<Pair>,
    #[serde(default)]
    options: Options,
}

fn known_schema<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    match u32::deserialize(deserializer)? {
        JOB_SCHEMA => Ok(JOB_SCHEMA),
        other => {
            let text = format!("a job of version {other}; this program reads version {JOB_SCHEMA}");
            Err(D::Error::custom(text))
        }
    }
}

impl From<Document> for JobSpec {
    fn from(document: Document) -> Self {
        Self { pairs: document.pairs, options: document.options }
    }
}

impl From<JobSpec> for Document {
    fn from(job: JobSpec) -> Self {
        Self { schema: JOB_SCHEMA, pairs: job.pairs, options: job.options }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::ffi::{OsStr, OsString};
    use std::os::unix::ffi::OsStrExt as _;
    use std::time::Duration;

    use ropewalk_protocol::command::Password;
    use ropewalk_storage::DirectIo;
    use ropewalk_storage::checksum::Algorithm;
    use ropewalk_tuning::tuner::{Fairness, Kind};

    use super::*;
    use crate::model::location::{Location, parse_location};
    use crate::model::options::{
        Authentication, Auto, ChecksumPolicy, Confirm, DataCredential, DataMode, DataProtection, FsyncPolicy,
        StallLimit, SyncLevel, TokenSource, Window,
    };

    fn pair(source: Location, destination: &str) -> Pair {
        Pair { source, destination: parse_location(destination).unwrap(), window: None }
    }

    /// The options with no default value that is serialised.
    fn changed() -> Options {
        Options::default().with(|o| {
            o.tuning.streams = Auto::Set(8);
            o.tuning.tuner = Kind::AptGolden;
            o.tuning.fairness = Fairness::Share(0.5);
            o.tuning.congestion = vec!["bbr".into()];
            o.data.mode = DataMode::Extended;
            o.data.ports = Some((50_000, 50_100));
            o.selection.sync = Some(SyncLevel::Checksum);
            o.selection.filters = vec![(false, "*.tmp".into())];
            o.selection.limits.min_age = Some(Duration::from_millis(1500));
            o.selection.listed = Some(vec!["a".into(), b"\xff".into()]);
            o.storage.direct_io = DirectIo::Never;
            o.integrity.checksum = ChecksumPolicy::Require(Algorithm::Blake3);
            o.integrity.fsync = FsyncPolicy::EachMarker;
            o.recovery.retry_pause = Duration::from_millis(10);
            o.recovery.retry_limit = Some(Duration::from_secs(3600));
            o.timeouts.stall = Some(StallLimit { bytes_per_second: 10, time: Duration::from_secs_f64(0.1) });
            o.login.user = Some("alice".into());
            o.login.token = TokenSource::File("/run/token".into());
            o.login.authentication = Authentication::Kerberos;
            o.login.source.credential = Some("/tmp/x509".into());
            o.trust.fingerprint = "0".repeat(64).parse().ok();
            o.data_security.credential = DataCredential::File("/tmp/data".into());
            o.data_security.protection = DataProtection::Private;
            o.preserve.times = true;
            o.ssh.program = vec!["ssh".into(), OsString::from("-4")];
            o.state_directory = Some("/var/lib/ropewalk".into());
        })
    }

    #[test]
    fn job_is_the_same_after_a_round_trip() {
        let part = Window { offset: 5, length: Some(7) };
        let odd = Location::Local(OsStr::from_bytes(b"/tmp/\xfe").into());
        let pairs = vec![
            Pair { window: Some(part), ..pair(parse_location("gsiftp://h:2811/a%20b").unwrap(), "./x") },
            pair(odd, "null:"),
            pair(Location::Local("-".into()), "ftp://h/in/"),
            pair(parse_location("zero:10M").unwrap(), "-"),
        ];
        for options in [Options::default(), changed()] {
            let job = JobSpec::new(pairs.clone()).with_options(options);
            let text = serde_json::to_string(&job).unwrap();
            let read: JobSpec = serde_json::from_str(&text).unwrap();
            assert_eq!(format!("{read:?}"), format!("{job:?}"));
        }
    }

    #[test]
    fn secrets_and_prompts_are_not_serialised() {
        let source = parse_location("ftp://alice:in-url@h/f").unwrap();
        let options = Options::default().with(|o| {
            o.login.password = Some(Password::new("in-options"));
            o.login.passphrases = [("k".to_owned(), "of-key".to_owned().into())].into_iter().collect();
            o.prompts.confirm = Some(Confirm::new(|_| true));
        });
        let text = serde_json::to_string(&JobSpec::new(vec![pair(source, "./f")]).with_options(options));
        let text = text.unwrap();
        for secret in ["in-url", "in-options", "of-key", "confirm"] {
            assert!(!text.contains(secret), "{secret}: {text}");
        }
        let read: JobSpec = serde_json::from_str(&text).unwrap();
        assert!(read.options.login.password.is_none() && read.options.prompts.confirm.is_none());
    }

    #[test]
    fn job_of_another_version_or_with_an_unknown_member_is_refused() {
        let read = |text: &str| serde_json::from_str::<JobSpec>(text).map_err(|error| error.to_string());
        assert!(read(r#"{"schema":1,"pairs":[]}"#).is_ok());
        let error = read(r#"{"schema":2,"future":true,"pairs":[]}"#).unwrap_err();
        assert!(error.contains("version 2"), "{error}");
        assert!(read(r#"{"pairs":[]}"#).is_err());
        assert!(read(r#"{"schema":1,"pairs":[],"options":{"tuning":{"stream":1}}}"#).is_err());
    }

    /// The example of the document is a job that this version reads.
    #[test]
    fn example_of_the_document_is_read() {
        let document = include_str!("../../../../docs/reference/jobs.md");
        let example = document.split("```json\n").nth(1).unwrap().split("```").next().unwrap();
        let job: JobSpec = serde_json::from_str(example).unwrap();
        assert_eq!(job.options.tuning.files, Auto::Set(4));
        assert_eq!(job.pairs.len(), 1);
    }
}
