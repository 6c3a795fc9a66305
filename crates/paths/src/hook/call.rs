//! One call of a hook: a program or an HTTP endpoint.

use std::fmt;
use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The longest answer in bytes.
const LONGEST: u64 = 64 << 10;
/// How often a program is looked at.
const LOOK: Duration = Duration::from_millis(5);
/// How long a child of the program may keep its output open.
const AFTERWARDS: Duration = Duration::from_secs(1);

/// The place that gets the events.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub enum Target {
    /// A program with arguments; the name of the event is added.
    Program(Vec<String>),
    Url(String),
}

/// An event was not dealt with.
#[derive(Debug, thiserror::Error)]
pub enum HookError {
    #[error("the hook {target} cannot be called: {reason}")]
    NotStarted { target: String, reason: String },
    #[error("the hook {target} did not end within {seconds} s ({event})")]
    Silent { target: String, event: String, seconds: u64 },
    #[error("the answer of the hook {target} was lost ({event}): {reason}")]
    Lost { target: String, event: String, reason: String },
    #[error("the hook {target} failed ({event}): {reason}")]
    Failed { target: String, event: String, reason: String },
    #[error("the answer of the hook {target} is not valid ({event}): {reason}")]
    Answer { target: String, event: String, reason: String },
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Program(words) => f.write_str(words.first().map_or("", String::as_str)),
            Self::Url(url) => f.write_str(url),
        }
    }
}

impl TryFrom<String> for Target {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        Self::parse(&text)
    }
}

impl From<Target> for String {
    fn from(target: Target) -> Self {
        match target {
            Target::Program(words) => {
                let words: Vec<_> =
                    words.iter().map(|word| shlex::Quoter::new().allow_nul(true).quote(word)).collect();
                words.iter().map(|word| word.as_deref().unwrap_or_default()).collect::<Vec<_>>().join(" ")
            }
            Target::Url(url) => url,
        }
    }
}

impl Target {
    /// Reads `PROGRAM [ARGUMENT...]`, with quotes as in a shell, or an http or https URL.
    ///
    /// # Errors
    /// There is no program, or a quote is open.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.starts_with("http://") || text.starts_with("https://") {
            return Ok(Self::Url(text.to_owned()));
        }
        match shlex::split(text) {
            Some(words) if !words.is_empty() => Ok(Self::Program(words)),
            _ => Err(format!("{text:?}: expected a program or an http:// or https:// URL")),
        }
    }

    /// Passes an event on. Returns the answer, or `None` if it is empty.
    ///
    /// # Errors
    /// The target cannot be reached, fails, or gives an answer of another form.
    pub fn call<T: DeserializeOwned>(
        &self,
        event: &str,
        content: &impl Serialize,
        limit: Duration,
    ) -> Result<Option<T>, HookError> {
        let not_started = |reason: String| HookError::NotStarted { target: self.to_string(), reason };
        let content = serde_json::to_vec(content).map_err(|error| not_started(error.to_string()))?;
        let answer = match self {
            Self::Program(words) => self.run(words, event, content, limit)?,
            Self::Url(url) => self.post(url, event, &content, limit)?,
        };
        let invalid =
            |reason| HookError::Answer { target: self.to_string(), event: event.to_owned(), reason };
        if answer.len() as u64 > LONGEST {
            return Err(invalid(format!("it is longer than {LONGEST} bytes")));
        }
        let answer = answer.trim_ascii();
        if answer.is_empty() {
            return Ok(None);
        }
        if answer[0] != b'{' {
            return Err(invalid("expected a JSON object, or nothing".to_owned()));
        }
        serde_json::from_slice(answer).map(Some).map_err(|error| invalid(error.to_string()))
    }

    fn run(
        &self,
        words: &[String],
        event: &str,
        content: Vec<u8>,
        limit: Duration,
    ) -> Result<Vec<u8>, HookError> {
        let target = || self.to_string();
        let not_started =
            |error: io::Error| HookError::NotStarted { target: target(), reason: error.to_string() };
        let Some((program, arguments)) = words.split_first() else {
            return Err(not_started(io::ErrorKind::NotFound.into()));
        };
        let mut command = Command::new(program);
        // A group of its own: Ctrl-C is for this program, which then releases the path by the hook.
        command.args(arguments).arg(event).process_group(0);
        command.env("ROPEWALK_EVENT", event);
        let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = pipes.spawn().map_err(not_started)?;
        let stdin = child.stdin.take();
        // A program need not read it.
        thread::spawn(move || stdin.map(|mut stdin| stdin.write_all(&[content, b"\n".to_vec()].concat())));
        let (output, messages) = (collect(child.stdout.take()), collect(child.stderr.take()));
        let status = wait(&mut child, limit).map_err(|error| match error.kind() {
            io::ErrorKind::TimedOut => {
                HookError::Silent { target: target(), event: event.to_owned(), seconds: limit.as_secs() }
            }
            _ => HookError::Lost { target: target(), event: event.to_owned(), reason: error.to_string() },
        })?;
        if !status.success() {
            let messages = messages.recv_timeout(AFTERWARDS).unwrap_or_default();
            let messages = String::from_utf8_lossy(&messages);
            let reason = match messages.trim() {
                "" => status.to_string(),
                text => format!("{status}: {text}"),
            };
            return Err(HookError::Failed { target: target(), event: event.to_owned(), reason });
        }
        Ok(output.recv_timeout(AFTERWARDS).unwrap_or_default())
    }

    fn post(&self, url: &str, event: &str, content: &[u8], limit: Duration) -> Result<Vec<u8>, HookError> {
        let (target, event) = (self.to_string(), event.to_owned());
        let agent = ureq::Agent::config_builder()
            .timeout_global(Some(limit))
            .max_redirects(0)
            .http_status_as_error(false)
            .tls_config(ureq::tls::TlsConfig::builder().provider(ureq::tls::TlsProvider::NativeTls).build())
            .build();
        let sent =
            ureq::Agent::new_with_config(agent).post(url).content_type("application/json").send(content);
        let mut answer = match sent {
            Ok(answer) => answer,
            Err(ureq::Error::HostNotFound | ureq::Error::ConnectionFailed | ureq::Error::BadUri(_)) => {
                let reason = "no connection to the endpoint".to_owned();
                return Err(HookError::NotStarted { target, reason });
            }
            Err(ureq::Error::Io(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {
                return Err(HookError::NotStarted { target, reason: error.to_string() });
            }
            Err(ureq::Error::Timeout(_)) => {
                return Err(HookError::Silent { target, event, seconds: limit.as_secs() });
            }
            Err(error) => return Err(HookError::Lost { target, event, reason: error.to_string() }),
        };
        let status = answer.status();
        let mut body = Vec::new();
        let read = answer.body_mut().as_reader().take(LONGEST + 1).read_to_end(&mut body);
        if !status.is_success() {
            let text = String::from_utf8_lossy(&body);
            let text = text.lines().next().unwrap_or_default().trim();
            let reason = format!("HTTP status {status} {}", text.chars().take(200).collect::<String>());
            return Err(HookError::Failed { target, event, reason: reason.trim_end().to_owned() });
        }
        match read {
            Ok(_) => Ok(body),
            Err(error) => Err(HookError::Lost { target, event, reason: error.to_string() }),
        }
    }
}

/// Reads up to the longest answer and one byte, in a thread.
fn collect(output: Option<impl Read + Send + 'static>) -> Receiver<Vec<u8>> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut output) = output {
            // After an error, the bytes so far are the answer.
            let _ = output.by_ref().take(LONGEST + 1).read_to_end(&mut bytes);
            let _ = sender.send(bytes);
            // A program that writes more must not wait for ever.
            let _ = io::copy(&mut output, &mut io::sink());
        }
    });
    receiver
}

fn wait(child: &mut Child, limit: Duration) -> io::Result<ExitStatus> {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if Instant::now() >= deadline {
            if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
                // It fails only if the group has ended.
                let _ = kill_process_group(group, Signal::KILL);
            }
            child.wait()?;
            return Err(io::ErrorKind::TimedOut.into());
        }
        thread::sleep(LOOK);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::Value;

    use super::*;

    #[test]
    fn program_that_does_not_end_is_killed() {
        let target = Target::Program(["sh", "-c", "sleep 1000 & sleep 1000"].map(str::to_owned).to_vec());
        let error = target.call::<Value>("hold", &Value::Null, Duration::from_millis(50)).unwrap_err();
        assert!(matches!(error, HookError::Silent { .. }), "{error}");
    }

    #[test]
    fn target_is_a_program_with_arguments_or_a_url() {
        let words = |words: &[&str]| Target::Program(words.iter().map(|word| (*word).to_owned()).collect());
        assert_eq!(Target::parse("/bin/hook"), Ok(words(&["/bin/hook"])));
        assert_eq!(Target::parse("hook --site 'a b'"), Ok(words(&["hook", "--site", "a b"])));
        assert_eq!(Target::parse("https://h/p"), Ok(Target::Url("https://h/p".to_owned())));
        assert!(Target::parse("").is_err() && Target::parse("'a").is_err());
    }

    #[test]
    fn endpoint_that_is_not_there_is_not_reached() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let target = Target::Url(format!("http://{}/", listener.local_addr().unwrap()));
        drop(listener);
        let error = target.call::<Value>("hold", &Value::Null, Duration::from_secs(5)).unwrap_err();
        assert!(matches!(error, HookError::NotStarted { .. }), "{error}");
    }
}
