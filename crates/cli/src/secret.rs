//! Reads a line from the terminal without showing it.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};

use rustix::process::{Signal, kill_current_process_group};
use rustix::termios::{LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcsetattr};
use zeroize::Zeroizing;

use crate::output::screen;

/// Longest line that is accepted, in bytes.
const LONGEST: usize = 4096;

/// Asks at the terminal, whatever standard input is. Echo is off before the question appears, so
/// that even an early answer stays hidden. Ctrl-C restores the terminal, which the kernel's own
/// signal would not.
///
/// # Errors
/// There is no terminal; this program is in its background; its input ends; or Ctrl-C, in which
/// case the process gets the signal.
pub(crate) fn ask(prompt: &str) -> io::Result<Zeroizing<String>> {
    let _question = screen::question();
    let mut terminal = File::options().read(true).write(true).open("/dev/tty")?;
    if screen::is_in_background(&terminal) {
        return Err(io::Error::other("a program in the background cannot ask at the terminal"));
    }
    let shown = Shown { modes: tcgetattr(&terminal)?, terminal: terminal.try_clone()? };
    let mut hidden = shown.modes.clone();
    hidden.local_modes.remove(LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG | LocalModes::IEXTEN);
    hidden.special_codes[SpecialCodeIndex::VMIN] = 1;
    hidden.special_codes[SpecialCodeIndex::VTIME] = 0;
    tcsetattr(&terminal, OptionalActions::Now, &hidden)?;
    terminal.write_all(prompt.as_bytes())?;
    let keys = Keys::of(&shown.modes);
    // Allocated at its final size, so that no copies stay in memory.
    let mut line = Zeroizing::new(Vec::with_capacity(LONGEST));
    let ended = loop {
        let mut byte = [0];
        match terminal.read(&mut byte) {
            Ok(0) => break Err(ErrorKind::UnexpectedEof.into()),
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => break Err(error),
        }
        match keys.take(&mut line, byte[0]) {
            Step::More => {}
            Step::Done => break Ok(()),
            Step::End => break Err(ErrorKind::UnexpectedEof.into()),
            Step::Interrupted => break Err(ErrorKind::Interrupted.into()),
        }
    };
    let _ = terminal.write_all(b"\n");
    drop(shown);
    match ended {
        Err(error) if error.kind() == ErrorKind::Interrupted => {
            // Sent to the whole foreground process group, as the kernel would.
            kill_current_process_group(Signal::INT)?;
            Err(error)
        }
        Err(error) => Err(error),
        Ok(()) => match str::from_utf8(&line) {
            Ok(text) => Ok(Zeroizing::new(text.to_owned())),
            Err(_) => Err(io::Error::new(ErrorKind::InvalidData, "the input is not UTF-8")),
        },
    }
}

/// Turns echo on again when it is dropped.
struct Shown {
    modes: Termios,
    terminal: File,
}

impl Drop for Shown {
    fn drop(&mut self) {
        let _ = tcsetattr(&self.terminal, OptionalActions::Now, &self.modes);
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Step {
    More,
    Done,
    /// The end of input.
    End,
    Interrupted,
}

/// The control characters that the terminal uses for editing a line.
struct Keys {
    erase: u8,
    kill: u8,
    end: u8,
    interrupt: u8,
    quit: u8,
}

impl Keys {
    fn of(modes: &Termios) -> Self {
        let codes = &modes.special_codes;
        Self {
            erase: codes[SpecialCodeIndex::VERASE],
            kill: codes[SpecialCodeIndex::VKILL],
            end: codes[SpecialCodeIndex::VEOF],
            interrupt: codes[SpecialCodeIndex::VINTR],
            quit: codes[SpecialCodeIndex::VQUIT],
        }
    }

    fn take(&self, line: &mut Vec<u8>, byte: u8) -> Step {
        match byte {
            b'\n' | b'\r' => return Step::Done,
            // A disabled key is 0.
            0 => {}
            _ if byte == self.interrupt || byte == self.quit => return Step::Interrupted,
            _ if byte == self.end => return if line.is_empty() { Step::End } else { Step::Done },
            _ if byte == self.kill => line.clear(),
            _ if byte == self.erase || matches!(byte, 0x08 | 0x7f) => {
                // Remove a whole character: continuation bytes are 10xxxxxx.
                while line.pop().is_some_and(|byte| byte & 0xc0 == 0x80) {}
            }
            _ if line.len() < LONGEST => line.push(byte),
            _ => {}
        }
        Step::More
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typed_line_is_edited() {
        let keys = Keys { erase: 0x7f, kill: 0x15, end: 4, interrupt: 3, quit: 0 };
        let type_in = |text: &[u8]| {
            let mut line = Vec::new();
            let step = text.iter().map(|&byte| keys.take(&mut line, byte)).find(|step| *step != Step::More);
            (step, String::from_utf8_lossy(&line).into_owned())
        };
        for (text, step, line) in [
            ("secret\nmore", Some(Step::Done), "secret"),
            ("s\u{e9}\x7fx\r", Some(Step::Done), "sx"),
            ("\x7f\x08a\x15b\n", Some(Step::Done), "b"),
            ("se\x03cret\n", Some(Step::Interrupted), "se"),
            ("\x04", Some(Step::End), ""),
            ("all\x04", Some(Step::Done), "all"),
            ("a\0b", None, "ab"),
        ] {
            assert_eq!(type_in(text.as_bytes()), (step, line.to_owned()), "{text:?}");
        }
        assert_eq!(type_in(&[b'x'; 5000]).1.len(), LONGEST);
    }
}
