//! The output of a program. A thread for each of standard output and standard error reads it, keeps
//! the last part, and looks for a line for which the lab waits. Long output does not block the
//! program, and is not kept completely.

use std::{
    io::{ErrorKind, Read},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};

/// The output of one program, read while it runs. Clones share the data.
#[derive(Clone, Default)]
pub(super) struct Output {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    streams: [Vec<u8>; 2],
    open: usize,
    wanted: Option<String>,
    found: bool,
    ended: bool,
}

/// The event that came first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    Line,
    End,
    Timeout,
}

impl Output {
    /// Starts to look for a line that contains `text`. Must be called before [`Self::read`].
    pub(super) fn want(&self, text: &str) {
        self.shared.state.lock().wanted = Some(text.to_owned());
    }

    /// Reads a stream (0: standard output, 1: standard error) on a thread, and keeps at least its
    /// last `keep` bytes.
    pub(super) fn read(&self, stream: usize, mut from: impl Read + Send + 'static, keep: usize) {
        self.shared.state.lock().open += 1;
        let own = self.clone();
        let reader = move || {
            let mut buffer = vec![0; 16 << 10];
            // The start of the last line, which may arrive in several reads.
            let mut line = Vec::new();
            loop {
                match from.read(&mut buffer) {
                    Ok(0) => break,
                    Ok(length) => own.take(stream, &buffer[..length], &mut line, keep),
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(_) => break,
                }
            }
            own.shared.state.lock().open -= 1;
            own.shared.changed.notify_all();
        };
        if thread::Builder::new().name("lab-output".into()).spawn(reader).is_err() {
            // The pipe is closed now, so the program's writes to it fail.
            self.shared.state.lock().open -= 1;
        }
    }

    fn take(&self, stream: usize, bytes: &[u8], line: &mut Vec<u8>, keep: usize) {
        let mut state = self.shared.state.lock();
        if let Some(wanted) = state.wanted.clone() {
            for byte in bytes {
                line.push(*byte);
                if *byte == b'\n' || line.len() > 64 << 10 {
                    line.clear();
                } else if line.ends_with(wanted.as_bytes()) {
                    (state.found, state.wanted) = (true, None);
                    self.shared.changed.notify_all();
                    break;
                }
            }
        }
        let kept = &mut state.streams[stream];
        kept.extend_from_slice(bytes);
        if kept.len() > keep * 2 {
            kept.drain(..kept.len() - keep);
        }
    }

    /// Records that the program has ended, and waits up to one second for the rest of its output.
    pub(super) fn end(&self) {
        let deadline = Instant::now() + Duration::from_secs(1);
        let mut state = self.shared.state.lock();
        // Child processes that still run may keep the pipe open.
        while state.open > 0 && Instant::now() < deadline {
            let left = deadline.saturating_duration_since(Instant::now());
            self.shared.changed.wait_for(&mut state, left);
        }
        state.ended = true;
        self.shared.changed.notify_all();
    }

    /// Waits for the wanted line or for the end of the program.
    pub(super) fn wait(&self, deadline: Instant) -> Found {
        let mut state = self.shared.state.lock();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match (state.found, state.ended) {
                (true, _) => return Found::Line,
                (_, true) => return Found::End,
                _ if left.is_zero() => return Found::Timeout,
                _ => {}
            }
            self.shared.changed.wait_for(&mut state, left);
        }
    }

    /// Whether the program has ended.
    pub(super) fn ended(&self) -> bool {
        self.shared.state.lock().ended
    }

    /// The last `keep` bytes of a stream.
    pub(super) fn text(&self, stream: usize, keep: usize) -> String {
        let state = self.shared.state.lock();
        let kept = &state.streams[stream];
        String::from_utf8_lossy(&kept[kept.len().saturating_sub(keep)..]).into_owned()
    }

    /// The last lines of both streams, for an error message.
    pub(super) fn tail(&self) -> String {
        let all = [0, 1].map(|stream| self.text(stream, 4 << 10)).join("\n");
        let lines: Vec<_> = all.lines().filter(|line| !line.trim().is_empty()).collect();
        lines[lines.len().saturating_sub(12)..]
            .iter()
            .map(|line| format!("  {line}"))
            .collect::<Vec<_>>()
            .join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_when_a_line_arrives_in_two_reads_finds_it() {
        let output = Output::default();
        output.want("Server listening");
        let text = std::io::Cursor::new("noise\nServer lis").chain(std::io::Cursor::new("tening on 5001\n"));
        output.read(0, text, 1024);
        assert_eq!(output.wait(Instant::now() + Duration::from_secs(5)), Found::Line);
        output.end();
        assert_eq!(output.text(0, 1024), "noise\nServer listening on 5001\n");
    }

    #[test]
    fn output_when_long_keeps_the_end() {
        let output = Output::default();
        output.want("nothing like it");
        output.read(1, std::io::Cursor::new(vec![b'x'; 100_000]).chain(std::io::Cursor::new("\nlast")), 1000);
        output.end();
        assert_eq!(output.wait(Instant::now()), Found::End);
        assert!(output.text(1, 1000).ends_with("x\nlast"));
        assert_eq!(output.text(1, 1000).len(), 1000);
        assert!(output.tail().ends_with("  last"));
    }
}
