//! Runs a program at its own terminal, reads its screen, and types to it.

use std::io::{Read, Write};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::process;

const LIMIT: Duration = Duration::from_secs(60);

/// A program at a terminal. Dropping it closes the terminal, which also ends the program.
#[derive(Debug)]
pub struct Terminal {
    script: Child,
    keys: Option<ChildStdin>,
    shown: Receiver<Vec<u8>>,
    text: String,
    /// End of the output that earlier calls have waited for.
    seen: usize,
}

impl Terminal {
    /// Starts the program, arguments, environment, and directory of `command`; `script` provides
    /// the terminal.
    pub fn start(command: &Command) -> Result<Self> {
        let quoted = |word: &std::ffi::OsStr| format!("'{}'", word.to_string_lossy().replace('\'', r"'\''"));
        let words: Vec<String> =
            [command.get_program()].into_iter().chain(command.get_args()).map(quoted).collect();
        let mut script = process::command("script");
        script.args(["-qec", &format!("exec {}", words.join(" ")), "/dev/null"]);
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => script.env(name, value),
                None => script.env_remove(name),
            };
        }
        if let Some(directory) = command.get_current_dir() {
            script.current_dir(directory);
        }
        script.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut script = script.spawn().context("starting script (Debian: bsdutils)")?;
        let (keys, screen) = (script.stdin.take(), script.stdout.take());
        let mut screen = screen.context("the terminal's screen")?;
        let (sender, shown) = mpsc::channel();
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(n) = screen.read(&mut buffer)
                && n > 0
                && sender.send(buffer[..n].to_vec()).is_ok()
            {}
        });
        Ok(Self { script, keys, shown, text: String::new(), seen: 0 })
    }

    /// Waits until `wanted` appears on the screen after the text of the previous call.
    pub fn wait_for(&mut self, wanted: &str) -> Result<()> {
        let end = Instant::now() + LIMIT;
        loop {
            if let Some(at) = self.text[self.seen..].find(wanted) {
                self.seen += at + wanted.len();
                return Ok(());
            }
            match self.shown.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(bytes) => self.text.push_str(&String::from_utf8_lossy(&bytes)),
                Err(error) => bail!("waiting for {wanted:?}: {error}: {}", self.text),
            }
        }
    }

    /// Types a line.
    pub fn enter(&mut self, line: &str) -> Result<()> {
        self.press(&format!("{line}\n"))
    }

    /// Types these characters.
    pub fn press(&mut self, characters: &str) -> Result<()> {
        let keys = self.keys.as_mut().context("nobody is there any more")?;
        keys.write_all(characters.as_bytes())?;
        Ok(keys.flush()?)
    }

    /// Types Ctrl-C, for which the terminal sends SIGINT to its foreground process group.
    pub fn interrupt(&mut self) -> Result<()> {
        self.press("\x03")
    }

    /// Waits for the program to end and returns its exit status and everything shown on the screen.
    pub fn finish(mut self) -> Result<(ExitStatus, String)> {
        let end = Instant::now() + LIMIT;
        loop {
            match self.shown.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(bytes) => self.text.push_str(&String::from_utf8_lossy(&bytes)),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => bail!("it does not end: {}", self.text),
            }
        }
        let status = self.script.wait()?;
        Ok((status, std::mem::take(&mut self.text)))
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.script.kill();
        let _ = self.script.wait();
    }
}
