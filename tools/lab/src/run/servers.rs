//! The steps before the commands: preparation, servers, cross traffic. Servers are started one
//! after the other, and each must be ready within its timeout. Then comes time zero, at which
//! recorder, cross traffic and scheduled changes start. A server that fails at any time ends the
//! run.

use super::{
    Context, Event, Message, Program as Which, RunError,
    lab::{Lab, Program},
    output::Found,
    process::{Ended, Launch, Process},
    traffic::{self, Traffic},
};
use crate::{
    disk::DiskServer,
    emulator::{Change, Control},
    record::{Diagnostics, HostSource, Recorder, Sources, Watched, cpu::Cpu},
    results::End,
    scenario::{Ready, Run, Server, Time},
};
use rustix::process::Signal;
use std::{
    collections::BTreeMap,
    sync::mpsc::{self, Receiver, RecvTimeoutError},
    thread,
    time::{Duration, Instant, SystemTime},
};

/// Interval at which the kernel is asked whether a socket listens at a port, as there is no event
/// to wait for.
const LISTEN_INTERVAL: Duration = Duration::from_millis(5);

impl Lab {
    /// Starts a program of the scenario.
    pub(super) fn launch(
        &self,
        which: Which,
        (name, host): (&str, &str),
        run: &Run,
        environment: &BTreeMap<String, String>,
        wanted: Option<&str>,
    ) -> Result<Program, RunError> {
        let arguments = self.context.arguments(run, host)?;
        let environment = self.context.environment(host, environment)?;
        let keep = self.context.scenario.record.output.0 as usize;
        let directory = Context::dir(host);
        let launch =
            Launch { arguments: &arguments, environment: &environment, directory: &directory, keep, wanted };
        let messages = self.messages.0.clone();
        let process = Process::start(self.host(host)?.spaces(), &launch, move |ended| {
            // There is no receiver any more while the lab is being removed.
            let _ = messages.send(Message::Ended(which, ended));
        });
        let process = process.map_err(|error| RunError::Spawn {
            name: name.to_owned(),
            host: host.to_owned(),
            program: arguments.first().cloned().unwrap_or_default(),
            error,
        })?;
        Ok(Program { arguments, process, ended: None, timed_out: false, stopped: false })
    }

    /// Runs the commands of `prepare`.
    pub(super) fn prepare(&mut self) -> Result<(), RunError> {
        self.options.stop.tell(&self.messages.0);
        for prepare in self.context.scenario.prepare.clone() {
            let mut program = self.launch(
                Which::Prepare,
                ("prepare", &prepare.host),
                &prepare.run,
                &prepare.environment,
                None,
            )?;
            self.event(Event::Preparing { host: prepare.host.clone(), run: program.arguments.join(" ") });
            let deadline = program.process.started + prepare.timeout.0;
            let ended = loop {
                match self.receive(deadline)? {
                    Some(Message::Ended(Which::Prepare, ended)) => break Some(ended),
                    Some(_) => {}
                    None => break None,
                }
            };
            let what = match ended.map(|ended| ended.end) {
                Some(End::Exit(0)) => {
                    program.process.join();
                    continue;
                }
                Some(end) => describe(end),
                None => {
                    program.process.signal(Signal::KILL);
                    format!("took longer than its timeout, {}", prepare.timeout)
                }
            };
            let output = program.process.output.tail();
            let name = format!("`{}`", program.arguments.join(" "));
            return Err(RunError::Command { name, host: prepare.host.clone(), what, output });
        }
        Ok(())
    }

    /// Starts the servers one after the other. Each is started when the one before it is ready.
    pub(super) fn start_servers(&mut self) -> Result<(), RunError> {
        for (index, server) in self.context.scenario.servers.clone().iter().enumerate() {
            let wanted = match &server.ready {
                Some(Ready::Line(text)) => Some(self.context.fill(text, &server.host)?),
                _ => None,
            };
            let names = (server.name.as_str(), server.host.as_str());
            let program = self.launch(
                Which::Server(index),
                names,
                &server.run,
                &server.environment,
                wanted.as_deref(),
            )?;
            self.servers.push(program);
            self.wait_ready(index, server)?;
            self.event(Event::Ready { server: server.name.clone() });
        }
        Ok(())
    }

    fn wait_ready(&mut self, index: usize, server: &Server) -> Result<(), RunError> {
        let output = self.servers[index].process.output.clone();
        let deadline = Instant::now() + server.timeout.0;
        let failed = |what: String, output: &super::output::Output| RunError::Server {
            name: server.name.clone(),
            host: server.host.clone(),
            what,
            output: output.tail(),
        };
        let late = |timeout: Time| format!("was not ready after {timeout}");
        match &server.ready {
            None => Ok(()),
            Some(Ready::Line(text)) => loop {
                // Waits in short intervals, in order to notice a request to stop.
                let piece = deadline.min(Instant::now() + Duration::from_millis(200));
                match output.wait(piece) {
                    Found::Line => return Ok(()),
                    Found::End => return Err(failed(format!("ended without a line with `{text}`"), &output)),
                    Found::Timeout if piece == deadline => return Err(failed(late(server.timeout), &output)),
                    Found::Timeout => self.check_stop()?,
                }
            },
            Some(Ready::Port(port)) => {
                let text = self.context.fill(&port.to_string(), &server.host)?;
                let port: u16 =
                    text.parse().map_err(|_| failed(format!("has `{text}` for a port"), &output))?;
                let sockets = self.host(&server.host)?.spaces().on_network(Diagnostics::open);
                let mut sockets = sockets.map_err(look_failed(&server.host))?;
                while !sockets.listens(port).map_err(look_failed(&server.host))? {
                    if Instant::now() >= deadline {
                        let what = format!("{}: nothing listens at port {port}", late(server.timeout));
                        return Err(failed(what, &output));
                    }
                    self.check_stop()?;
                    self.check_servers(index)?;
                    thread::sleep(LISTEN_INTERVAL);
                }
                Ok(())
            }
        }
    }

    /// Time zero: starts the recorder, the cross traffic and the schedules of the links.
    pub(super) fn begin(&mut self) -> Result<(), RunError> {
        self.disks.values().for_each(DiskServer::start);
        for link in &mut self.links {
            // An emulator that has ended counts no more packets.
            if let Ok(now) = link.emulator.control().snapshot() {
                link.before = [now.forward, now.backward];
            }
        }
        (self.zero, self.started) = (Instant::now(), SystemTime::now());
        let scenario = &self.context.scenario;
        let mut hosts = Vec::new();
        for host in &self.hosts {
            if scenario
                .record
                .hosts
                .as_ref()
                .is_some_and(|wanted| wanted.iter().all(|name| name != host.name()))
            {
                continue;
            }
            let sockets = host.spaces().on_network(Diagnostics::open).map_err(look_failed(host.name()))?;
            let disk = self.disks.get(host.name()).map(|disk| disk.meter());
            hosts.push(HostSource { name: host.name().to_owned(), sockets, disk });
        }
        let port = |index: usize| traffic::FIRST_PORT + index as u16;
        let names = scenario.traffic.iter().enumerate();
        let commands =
            scenario.commands.iter().map(|command| Watched::new(&command.name, None, Cpu::default()));
        let servers =
            scenario.servers.iter().zip(&self.servers).map(|(server, program)| match program.ended {
                Some(ended) => Watched::new(&server.name, None, ended.cpu),
                None => Watched::new(&server.name, Some(program.process.pid), Cpu::default()),
            });
        let sources = Sources {
            hosts,
            interval: scenario.record.interval.0,
            connections: scenario.record.connections as usize,
            traffic: names.map(|(index, traffic)| (port(index), traffic.name.clone())).collect(),
            watched: commands.chain(servers).collect(),
        };
        let recorder = Recorder::start(sources, self.zero);
        let recorder = recorder.map_err(|error| RunError::Build { what: "start to record".into(), error })?;
        for (index, entry) in scenario.traffic.iter().enumerate() {
            let spaces = (self.host(&entry.from)?.spaces(), self.host(&entry.to)?.spaces());
            let Some((address, _)) = self.context.topology.address(&entry.to, &entry.from) else { continue };
            let started = Traffic::start(entry, port(index), address, spaces, self.zero, scenario.seed)?;
            self.traffic.push(started);
        }
        self.recorder = Some(recorder);
        self.start_changes()
    }

    fn start_changes(&mut self) -> Result<(), RunError> {
        let mut changes: Vec<(Instant, Control, Change)> = Vec::new();
        for (link, config) in self.links.iter().zip(&self.context.scenario.links) {
            for change in &config.changes {
                let now = Change { at: Duration::ZERO, ..change.clone() };
                changes.push((self.zero + change.at, link.emulator.control(), now));
            }
        }
        changes.sort_by_key(|(at, ..)| *at);
        if changes.is_empty() {
            return Ok(());
        }
        let (stop, stopped) = mpsc::channel();
        let warnings = self.warnings.clone();
        let apply = move || {
            for (at, control, change) in changes {
                if !wait_until(at, &stopped) {
                    return;
                }
                if let Err(error) = control.apply(&change) {
                    let warning = format!("a change of a link failed: {error}");
                    warnings.lock().push(warning);
                }
            }
        };
        let thread = thread::Builder::new().name("lab-changes".into()).spawn(apply);
        let thread =
            thread.map_err(|error| RunError::Build { what: "start the links' schedule".into(), error })?;
        self.changes = Some((stop, thread));
        Ok(())
    }

    /// Returns the next message, or `None` if there is none before the deadline.
    pub(super) fn receive(&mut self, deadline: Instant) -> Result<Option<Message>, RunError> {
        match self.messages.1.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(Message::Stop) => Err(RunError::Stopped),
            Ok(Message::Ended(Which::Server(index), ended)) => {
                self.server_ended(index, ended);
                self.check_servers(index)?;
                Ok(Some(Message::Ended(Which::Server(index), ended)))
            }
            Ok(message) => Ok(Some(message)),
            // `self.messages` holds a sender itself, so the channel cannot be disconnected.
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => Ok(None),
        }
    }

    fn server_ended(&mut self, index: usize, ended: Ended) {
        if let Some(server) = self.servers.get_mut(index) {
            server.ended = Some(ended);
        }
        if let Some(recorder) = &self.recorder {
            let place = self.context.scenario.commands.len() + index;
            if let Some(watched) = recorder.watched().get_mut(place) {
                watched.ended(ended.cpu);
            }
        }
    }

    fn check_stop(&mut self) -> Result<(), RunError> {
        while self.receive(Instant::now())?.is_some() {}
        Ok(())
    }

    /// A server that exits with code 0 may have left a child process that serves; any other end is
    /// an error.
    fn check_servers(&self, index: usize) -> Result<(), RunError> {
        let (Some(program), Some(server)) =
            (self.servers.get(index), self.context.scenario.servers.get(index))
        else {
            return Ok(());
        };
        match program.ended {
            None | Some(Ended { end: End::Exit(0), .. }) => Ok(()),
            Some(ended) => Err(RunError::Server {
                name: server.name.clone(),
                host: server.host.clone(),
                what: describe(ended.end),
                output: program.process.output.tail(),
            }),
        }
    }
}

fn wait_until(at: Instant, stopped: &Receiver<()>) -> bool {
    stopped.recv_timeout(at.saturating_duration_since(Instant::now())) == Err(RecvTimeoutError::Timeout)
}

fn look_failed(host: &str) -> impl Fn(std::io::Error) -> RunError {
    let what = format!("look at the sockets of {host}");
    move |error| RunError::Build { what: what.clone(), error }
}

/// Describes how a program ended.
pub(super) fn describe(end: End) -> String {
    match end {
        End::Exit(code) => format!("ended with code {code}"),
        End::Signal(signal) => format!("was killed by signal {signal}"),
        End::Timeout => "took longer than its timeout".into(),
        End::Stopped => "was stopped".into(),
    }
}
