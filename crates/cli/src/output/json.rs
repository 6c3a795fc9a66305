//! `--json`: one object a line on standard output.

use std::io::{self, Write};
use std::sync::OnceLock;

use parking_lot::Mutex;
use ropewalk_client::{EVENT_SCHEMA, Event, EventSink};
use ropewalk_protocol::text::is_harmful;
use serde::Serialize;

#[derive(Serialize)]
struct Line<'a, T> {
    schema: u32,
    #[serde(flatten)]
    content: &'a T,
}

/// Writes `content` (a struct or an event) with the schema version, on one line.
///
/// # Errors
/// `out` cannot be written.
pub fn json_line<T: Serialize>(out: &mut impl Write, content: &T) -> io::Result<()> {
    let mut line = escaped(serde_json::to_string(&Line { schema: EVENT_SCHEMA, content })?);
    line.push('\n');
    out.write_all(line.as_bytes())
}

/// Returns the same value in which characters that control a terminal, or change the direction of
/// text, are written as `\u` escapes. JSON has no such characters outside of strings.
fn escaped(json: String) -> String {
    if !json.contains(is_harmful) {
        return json;
    }
    let mut text = String::with_capacity(json.len() + 16);
    for c in json.chars() {
        if is_harmful(c) {
            // All of them are among the first 65536 characters.
            text.push_str(&format!("\\u{:04x}", u32::from(c)));
        } else {
            text.push(c);
        }
    }
    text
}

/// Writes each event. A failure to write does not stop the copy.
#[derive(Default)]
pub(crate) struct Json {
    lost: OnceLock<io::Error>,
    /// The last event, which is written after those of the network path.
    finished: Mutex<Option<Event>>,
}

impl Json {
    /// Writes the last event, after all others.
    pub(crate) fn finish(&self) {
        if let Some(event) = self.finished.lock().take() {
            self.write(&event);
        }
    }

    /// Returns the error by which events were lost. A reader that closed the pipe is not an error.
    pub(crate) fn lost(&self) -> Option<&io::Error> {
        self.lost.get().filter(|error| error.kind() != io::ErrorKind::BrokenPipe)
    }

    fn write(&self, event: &Event) {
        let mut out = io::stdout().lock();
        if let Err(error) = json_line(&mut out, event).and_then(|()| out.flush()) {
            let _ = self.lost.set(error);
        }
    }
}

impl EventSink for Json {
    fn event(&self, event: Event) {
        match event {
            Event::Finished(_) => *self.finished.lock() = Some(event),
            event => self.write(&event),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use ropewalk_client::{SlowestPart, Summary};

    use super::*;

    #[test]
    fn json_escapes_control_characters_and_keeps_the_value() {
        let said = "a\x1b]0;t\x07\u{7f}\u{9b}2J\u{85}\u{202e}exe\u{2066}\n\tÄ \u{1f41f} \\u0041 \"";
        let mut line = Vec::new();
        json_line(&mut line, &serde_json::json!({ "said": said })).unwrap();
        let line = String::from_utf8(line).unwrap();
        assert!(!line.trim_end_matches('\n').contains(is_harmful), "{line:?}");
        assert!(
            line.contains(r"\u007f\u009b2J\u0085\u202eexe\u2066") && line.contains("Ä \u{1f41f}"),
            "{line}"
        );
        let value: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(value["said"], said);
    }

    #[test]
    fn events_are_flat_json_objects() {
        let event = Event::Planned { files: 1, bytes: 2, complete: true };
        let line = serde_json::to_string(&Line { schema: EVENT_SCHEMA, content: &event }).unwrap();
        assert_eq!(line, r#"{"schema":1,"event":"planned","files":1,"bytes":2,"complete":true}"#);
    }

    #[test]
    fn summary_is_written_as_an_event() {
        let summary = Summary {
            files_done: 3,
            files_skipped: 0,
            files_failed: 0,
            interrupted: false,
            unrecorded: 0,
            directories: 0,
            removed: 0,
            bytes: 7,
            bytes_resumed: 0,
            seconds: 0.5,
            bytes_done: 7,
            bytes_verified: 7,
            streams: 1,
            files_in_flight: 1,
            retries: 0,
            tuned: vec![],
            stacks: vec![],
            cpu_seconds: 0.1,
            slowest: SlowestPart::Network { share: 0.5 },
            stages: ropewalk_client::StageTimes::default(),
            failures: vec![],
            failed_for: None,
        };
        let event = Event::Finished(Box::new(summary));
        let value = serde_json::to_value(Line { schema: EVENT_SCHEMA, content: &event }).unwrap();
        assert_eq!(value["event"], "finished");
        assert_eq!(value["files_done"], 3);
        assert_eq!(value["slowest"]["part"], "network");
    }
}
