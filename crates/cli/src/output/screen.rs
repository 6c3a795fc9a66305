//! The terminal, shared by the threads of this program: the progress line at its bottom, messages,
//! and questions.
//!
//! Everything that is written to standard error passes through here, so that the progress line is
//! removed first, and is not drawn while a question is open. One lock orders all output; only
//! writes to the terminal block while it is held.

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use rustix::process::getpgrp;
use rustix::termios::{tcgetpgrp, tcgetwinsize};

/// Interval at which the progress line is redrawn.
const REDRAW: Duration = Duration::from_millis(250);
/// Columns of a terminal that does not report its width.
const COLUMNS: usize = 80;

static SCREEN: Mutex<Screen> = Mutex::new(Screen { shown: false, held: 0 });
/// Held during a question, so that only one is open.
static QUESTION: Mutex<()> = Mutex::new(());

struct Screen {
    /// Whether the progress line is on the screen.
    shown: bool,
    /// Number of open or possible questions.
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

/// Writes with the progress line removed.
pub(crate) fn aside<T>(write: impl FnOnce() -> T) -> T {
    let mut screen = SCREEN.lock();
    screen.clear();
    write()
}

/// While one exists, no progress line is drawn.
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

/// Whether this program is in the background of its terminal. The kernel would stop it if it read
/// from the terminal or changed its modes, and the user might not see why nothing happens.
pub(crate) fn is_in_background(terminal: impl AsFd) -> bool {
    // There is an error if it is not the terminal of this session: then nothing is stopped.
    tcgetpgrp(terminal).is_ok_and(|foreground| foreground != getpgrp())
}

/// A question of our own. Other questions wait until it is answered.
pub(crate) struct Question {
    // The fields are dropped in this order.
    _hold: Hold,
    _alone: MutexGuard<'static, ()>,
}

/// Opens a question; every question is opened here.
pub(crate) fn question() -> Question {
    let alone = QUESTION.lock();
    Question { _hold: hold(), _alone: alone }
}

/// Standard error for log messages.
pub(crate) struct Log;

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        aside(|| io::stderr().lock().write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// Repeats an action until it is dropped, which also removes the progress line.
pub(crate) struct Ticker {
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Ticker {
    /// Draws the text that `line` returns for a number of columns. If no thread can be started,
    /// nothing is drawn.
    pub(crate) fn drawing(line: impl Fn(usize) -> String + Send + 'static) -> Self {
        Self::every(REDRAW, move || {
            let line = line(columns());
            SCREEN.lock().draw(&line);
        })
    }

    /// Calls `act` after each period, for the first time after one.
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

/// The usable width. One column stays free, because some terminals wrap after the last one.
fn columns() -> usize {
    let told = tcgetwinsize(io::stderr()).map_or(0, |size| usize::from(size.ws_col));
    if told == 0 { COLUMNS - 1 } else { told - 1 }
}

/// Hides the progress line while ssh may ask.
pub(crate) fn terminal() -> ropewalk_client::Terminal {
    ropewalk_client::Terminal::new(hold)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn question_hides_the_progress_line() {
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
