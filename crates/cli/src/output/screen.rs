//! The terminal, which the threads of this program share: the line of progress at its bottom, lines that are said, and questions.
//!
//! Everything that is written to standard error goes through here, so that the line of progress is taken away first, and is not
//! drawn while a question is open: whoever answers sees the question alone. One lock orders all of it; nothing waits while it is held
//! but for the terminal.

use std::io::{self, Write};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use rustix::termios::tcgetwinsize;

/// The line of progress is drawn anew so often.
const REDRAW: Duration = Duration::from_millis(250);
/// Columns of a terminal that does not tell.
const COLUMNS: usize = 80;

static SCREEN: Mutex<Screen> = Mutex::new(Screen { shown: false, held: 0 });
/// One question at a time.
static QUESTION: Mutex<()> = Mutex::new(());

struct Screen {
    /// The line of progress is there.
    shown: bool,
    /// So many ask at the terminal, or may.
    held: usize,
}

impl Screen {
    fn clear(&mut self) {
        if std::mem::take(&mut self.shown) {
            let _ = io::stderr().lock().write_all(b"\r\x1b[K");
        }
    }

    fn hold(&mut self) {
        self.clear();
        self.held += 1;
    }

    fn draw(&mut self, line: &str) {
        if self.held == 0 {
            self.shown = true;
            let _ = io::stderr().lock().write_all(format!("\r{line}\x1b[K").as_bytes());
        }
    }
}

/// Writes with the line of progress out of the way.
pub(crate) fn aside<T>(write: impl FnOnce() -> T) -> T {
    let mut screen = SCREEN.lock();
    screen.clear();
    write()
}

/// Nothing is drawn while there is one.
pub(crate) struct Hold(());

/// For another program that may ask at the terminal.
pub(crate) fn hold() -> Hold {
    SCREEN.lock().hold();
    Hold(())
}

impl Drop for Hold {
    fn drop(&mut self) {
        SCREEN.lock().held -= 1;
    }
}

/// A question of our own. Others wait until it is answered.
pub(crate) struct Question {
    // Dropped in this order.
    _hold: Hold,
    _alone: MutexGuard<'static, ()>,
}

/// Every question goes through here.
pub(crate) fn question() -> Question {
    let alone = QUESTION.lock();
    Question { _hold: hold(), _alone: alone }
}

/// Standard error for what is logged.
pub(crate) struct Log;

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        aside(|| io::stderr().lock().write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// Something that is done again and again until this is dropped, which takes the line of progress away.
pub(crate) struct Ticker {
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Ticker {
    /// Draws what `line` makes for so many columns. Without a thread nothing is drawn.
    pub(crate) fn drawing(line: impl Fn(usize) -> String + Send + 'static) -> Self {
        Self::every(REDRAW, move || {
            let line = line(columns());
            SCREEN.lock().draw(&line);
        })
    }

    /// Calls `act` so often, not at once.
    pub(crate) fn every(time: Duration, act: impl Fn() + Send + 'static) -> Self {
        let (end, ended) = mpsc::channel::<()>();
        let run = move || {
            while ended.recv_timeout(time) == Err(RecvTimeoutError::Timeout) {
                act();
            }
        };
        let thread = thread::Builder::new().name("progress".into()).spawn(run).ok();
        Self { end: Some(end), thread }
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        SCREEN.lock().clear();
    }
}

/// One column is left free: some terminals begin a new line after the last.
fn columns() -> usize {
    let told = tcgetwinsize(io::stderr()).map_or(0, |size| usize::from(size.ws_col));
    if told == 0 { COLUMNS - 1 } else { told - 1 }
}

/// What keeps the line of progress away while ssh may ask.
pub(crate) fn terminal() -> ropewalk_client::Terminal {
    ropewalk_client::Terminal::new(hold)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_keep_the_line_of_progress_away() {
        let mut screen = Screen { shown: false, held: 0 };
        screen.draw("progress");
        assert!(screen.shown);
        screen.hold();
        assert!(!screen.shown);
        screen.draw("progress");
        assert!(!screen.shown, "nothing is drawn over a question");
        screen.hold();
        screen.held -= 1;
        screen.draw("progress");
        assert!(!screen.shown, "another program may still ask");
        screen.held -= 1;
        screen.draw("progress");
        assert!(screen.shown);
        screen.clear();
    }
}
