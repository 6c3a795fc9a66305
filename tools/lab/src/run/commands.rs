//! Runs the timed commands. The calling thread starts them, enforces their limits and reports
//! progress; the end of a program is a message from the thread that waits for it. A failing command
//! ends the run with an error, unless the scenario permits it.

use super::{Event, Message, Program as Which, RunError, lab::Lab, process::Ended, servers::describe};
use crate::{results::End, scenario::Command};
use rustix::process::Signal;
use std::time::{Duration, Instant};

/// Interval of [`Event::Progress`].
const PROGRESS: Duration = Duration::from_millis(500);
/// Time that a program has to end after SIGINT, before it is killed.
const GRACE: Duration = Duration::from_secs(5);

/// The time and the counter of the last progress event.
struct Progress {
    at: Instant,
    received: u64,
}

impl Lab {
    /// Runs the timed commands until all have ended.
    ///
    /// # Errors
    /// [`RunError::Command`] if a command fails or takes too long, [`RunError::Timeout`] if the run
    /// takes too long, [`RunError::Server`] if a server fails, [`RunError::Stopped`].
    pub fn run_commands(&mut self) -> Result<(), RunError> {
        let timeout = self.context.scenario.timeout;
        let deadline = self.zero + timeout.0;
        let mut progress = Progress { at: self.zero, received: 0 };
        loop {
            self.start_due()?;
            self.stop_due()?;
            if self.all_ended() {
                return Ok(());
            }
            let now = Instant::now();
            if now >= deadline {
                return Err(RunError::Timeout { timeout, running: self.unfinished() });
            }
            self.step(&mut progress, self.next_due().into_iter().chain([deadline]).min())?;
        }
    }

    pub(super) fn run_until_stopped(&mut self) -> Result<(), RunError> {
        let mut progress = Progress { at: self.zero, received: 0 };
        loop {
            self.step(&mut progress, None)?;
        }
    }

    /// Waits for the next event and handles it.
    fn step(&mut self, progress: &mut Progress, due: Option<Instant>) -> Result<(), RunError> {
        let next = progress.at + PROGRESS;
        match self.receive(due.map_or(next, |due| due.min(next)))? {
            Some(Message::Ended(Which::Command(index), ended)) => self.command_ended(index, ended)?,
            Some(_) => {}
            None if Instant::now() >= next => self.progress(progress),
            None => {}
        }
        Ok(())
    }

    fn command(&self, index: usize) -> &Command {
        &self.context.scenario.commands[index]
    }

    /// The time at which a command may start; `None` if another command must end first.
    fn start_time(&self, index: usize) -> Option<Instant> {
        let command = self.command(index);
        if let Some(at) = command.at {
            return Some(self.zero + at.0);
        }
        let ended = |index: usize| Some(self.commands[index].as_ref()?.ended?.at);
        let commands = &self.context.scenario.commands;
        let begin = match &command.after {
            Some(names) => {
                let mut latest = self.zero;
                for name in names {
                    let earlier = commands.iter().position(|command| command.name == *name)?;
                    latest = latest.max(ended(earlier)?);
                }
                latest
            }
            // The last command before it in the file for which the run waits.
            None => match commands[..index]
                .iter()
                .rposition(|earlier| !earlier.background && earlier.at.is_none())
            {
                Some(earlier) => ended(earlier)?,
                None => self.zero,
            },
        };
        Some(begin + command.delay.0)
    }

    fn start_due(&mut self) -> Result<(), RunError> {
        for index in 0..self.commands.len() {
            if self.commands[index].is_some()
                || self.start_time(index).is_none_or(|time| time > Instant::now())
            {
                continue;
            }
            let command = self.command(index).clone();
            let names = (command.name.as_str(), command.host.as_str());
            let program =
                self.launch(Which::Command(index), names, &command.run, &command.environment, None)?;
            let at = program.process.started.saturating_duration_since(self.zero).as_secs_f64();
            if let Some(recorder) = &self.recorder
                && let Some(watched) = recorder.watched().get_mut(index)
            {
                watched.pid = Some(program.process.pid);
            }
            self.commands[index] = Some(program);
            self.event(Event::CommandStarted { command: command.name, at });
        }
        Ok(())
    }

    /// The time at which a running command reaches its next limit or another command starts,
    /// whichever comes first.
    fn next_due(&self) -> Option<Instant> {
        let due = |index: usize| match &self.commands[index] {
            None => self.start_time(index),
            Some(program) if program.ended.is_some() => None,
            Some(program) => {
                let command = self.command(index);
                let stop = command.stop.map(|stop| program.process.started + stop.0);
                let stop = stop.map(|stop| if program.stopped { stop + GRACE } else { stop });
                let timeout = command.timeout.map(|timeout| program.process.started + timeout.0);
                stop.into_iter().chain(timeout.filter(|_| !program.timed_out)).min()
            }
        };
        (0..self.commands.len()).filter_map(due).min()
    }

    /// Ends the commands whose time is up.
    fn stop_due(&mut self) -> Result<(), RunError> {
        let now = Instant::now();
        for index in 0..self.commands.len() {
            let (stop, timeout) = (self.command(index).stop, self.command(index).timeout);
            let Some(program) = self.commands[index].as_mut().filter(|program| program.ended.is_none())
            else {
                continue;
            };
            let lasted = now.saturating_duration_since(program.process.started);
            match stop {
                Some(stop) if !program.stopped && lasted >= stop.0 => {
                    program.stopped = true;
                    program.process.signal(Signal::INT);
                }
                Some(stop) if program.stopped && lasted >= stop.0 + GRACE => {
                    program.process.signal(Signal::KILL);
                }
                _ => {}
            }
            if !program.timed_out && timeout.is_some_and(|timeout| lasted >= timeout.0) {
                program.timed_out = true;
                program.process.signal(Signal::KILL);
            }
        }
        Ok(())
    }

    fn command_ended(&mut self, index: usize, mut ended: Ended) -> Result<(), RunError> {
        let command = self.command(index).clone();
        if let Some(recorder) = &self.recorder
            && let Some(watched) = recorder.watched().get_mut(index)
        {
            watched.ended(ended.cpu);
        }
        let Some(program) = self.commands[index].as_mut() else { return Ok(()) };
        if program.timed_out {
            ended.end = End::Timeout;
        } else if program.stopped {
            ended.end = End::Stopped;
        }
        program.ended = Some(ended);
        let seconds = ended.at.saturating_duration_since(program.process.started).as_secs_f64();
        let output = program.process.output.tail();
        self.event(Event::CommandEnded { command: command.name.clone(), seconds, end: ended.end });
        if matches!(ended.end, End::Exit(0) | End::Stopped) || command.may_fail || command.background {
            return Ok(());
        }
        let mut what = describe(ended.end);
        if let (End::Timeout, Some(timeout)) = (ended.end, command.timeout) {
            what = format!("{what}, {timeout}");
        }
        Err(RunError::Command { name: command.name, host: command.host, what, output })
    }

    fn all_ended(&self) -> bool {
        let all = self.context.scenario.commands.iter().zip(&self.commands);
        all.filter(|(command, _)| !command.background)
            .all(|(_, program)| program.as_ref().is_some_and(|program| program.ended.is_some()))
    }

    fn running(&self) -> Vec<String> {
        let all = self.context.scenario.commands.iter().zip(&self.commands);
        let running = all.filter(|(command, program)| {
            !command.background && program.as_ref().is_some_and(|program| program.ended.is_none())
        });
        running.map(|(command, _)| command.name.clone()).collect()
    }

    /// The commands for which a run that takes too long still waits.
    fn unfinished(&self) -> String {
        let running = self.running();
        if !running.is_empty() {
            return running.join(", ");
        }
        let all = self.context.scenario.commands.iter().zip(&self.commands);
        let waiting = all.filter(|(_, program)| program.is_none()).map(|(command, _)| command.name.as_str());
        format!("none; not started: {}", waiting.collect::<Vec<_>>().join(", "))
    }

    fn progress(&self, last: &mut Progress) {
        let now = Instant::now();
        let Some(recorder) = &self.recorder else { return };
        let live = recorder.live().clone();
        let step = now.saturating_duration_since(last.at).as_secs_f64();
        let rate = live.received.saturating_sub(last.received) as f64 * 8.0 / step.max(1e-3);
        *last = Progress { at: now, received: live.received };
        self.event(Event::Progress {
            at: now.saturating_duration_since(self.zero).as_secs_f64(),
            running: self.running(),
            // Each connection is counted at both its ends, so the sum would count it twice.
            streams: live.streams.iter().copied().max().unwrap_or_default(),
            rate,
        });
    }
}
