//! `--json`: one object a line on standard output.

use std::io::{self, Write};
use std::sync::OnceLock;

use ropewalk_client::{Event, EventSink};
use serde::Serialize;

/// Grows when a field changes its meaning or goes away; new fields and events may come at any time.
const SCHEMA: u32 = 1;

#[derive(Serialize)]
struct Line<'a, T> {
    schema: u32,
    #[serde(flatten)]
    content: &'a T,
}

/// `content` (a struct or an event) with the schema, on one line.
pub(crate) fn json_line<T: Serialize>(out: &mut impl Write, content: &T) -> io::Result<()> {
    let mut line = serde_json::to_vec(&Line { schema: SCHEMA, content })?;
    line.push(b'\n');
    out.write_all(&line)
}

/// Writes every event. The copy is wanted also where they cannot be written.
#[derive(Default)]
pub(crate) struct Json {
    lost: OnceLock<io::Error>,
}

impl Json {
    /// Why events were lost, unless whoever read them has gone.
    pub(crate) fn lost(&self) -> Option<&io::Error> {
        self.lost.get().filter(|error| error.kind() != io::ErrorKind::BrokenPipe)
    }
}

impl EventSink for Json {
    fn event(&self, event: Event) {
        let mut out = io::stdout().lock();
        if let Err(error) = json_line(&mut out, &event).and_then(|()| out.flush()) {
            let _ = self.lost.set(error);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use ropewalk_client::{SlowestPart, Summary};

    use super::*;

    #[test]
    fn events_are_flat_objects() {
        let event = Event::Planned { files: 1, bytes: 2, complete: true };
        let line = serde_json::to_string(&Line { schema: SCHEMA, content: &event }).unwrap();
        assert_eq!(line, r#"{"schema":1,"event":"planned","files":1,"bytes":2,"complete":true}"#);
    }

    #[test]
    fn the_summary_is_an_event_as_well() {
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
            cpu_seconds: 0.1,
            slowest: SlowestPart::Network { share: 0.5 },
            stages: ropewalk_client::StageTimes::default(),
            failures: vec![],
            failed_for: None,
        };
        let event = Event::Finished(Box::new(summary));
        let value = serde_json::to_value(Line { schema: SCHEMA, content: &event }).unwrap();
        assert_eq!(value["event"], "finished");
        assert_eq!(value["files_done"], 3);
        assert_eq!(value["slowest"]["part"], "network");
    }
}
