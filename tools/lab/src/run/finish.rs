//! Ends a lab and makes its result. First the recorder ends, then the programs and the cross
//! traffic are stopped, then the emulators report. Everything that makes the result doubtful
//! becomes a warning.

use super::lab::{Lab, Program};
use crate::{
    emulator,
    record::{Recording, Watched},
    results::{
        CommandResult, DirectionResult, DirectionSeries, DiskResult, End, HostResult, LinkResult, LinkSeries,
        Machine, RunResult, SCHEMA, Series, TrafficResult,
    },
    scenario::{Size, Value},
};
use std::time::{Instant, UNIX_EPOCH};

/// If the 99th percentile of the lateness is above this many seconds, the result is doubtful.
const LATE: f64 = 0.002;
/// If the share of busy CPU time is above this, the programs did not get all the time that they
/// wanted.
const BUSY: f64 = 0.95;

impl Lab {
    /// Removes everything and returns the result.
    pub fn finish(mut self) -> RunResult {
        let end = Instant::now();
        let recording = self.recorder.take().map(crate::record::Recorder::finish).unwrap_or_default();
        self.event(super::Event::Stopping);
        self.down();
        let Recording { mut series, connections, programs, busy, warnings } = recording;
        warnings.into_iter().for_each(|warning| self.warn(warning));
        let links = self.link_results(&mut series);
        if busy > BUSY {
            self.warn(format!(
                "the machine was {:.0} % busy: its CPUs, not the path, may have been the bottleneck",
                busy * 100.0
            ));
        }
        let seconds = end.saturating_duration_since(self.zero).as_secs_f64();
        let variables = self.context.scenario.variables.iter();
        let traffic = self.traffic.iter().map(|traffic| {
            if let Some(error) = traffic.error() {
                self.warn(format!("cross traffic {}: {error}", traffic.name));
            }
            let ((bytes, flows), lasted) = (traffic.counted(), traffic.lasted(end).as_secs_f64());
            let rate = if lasted > 0.0 { bytes as f64 * 8.0 / lasted } else { 0.0 };
            TrafficResult { name: traffic.name.clone(), bytes, rate, flows }
        });
        let traffic = traffic.collect();
        let (commands, servers) = self.program_results(end, &programs, &series);
        RunResult {
            schema: SCHEMA,
            scenario: self.context.scenario.title.clone(),
            lab: self.context.lab.clone(),
            seed: self.context.scenario.seed,
            variables: variables.map(|(name, value)| (name.clone(), value.to_string())).collect(),
            started: self.started.duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64()),
            seconds,
            machine: Machine {
                kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
                cpus: std::thread::available_parallelism().map_or(1, |cpus| cpus.get() as u32),
                busy,
                load: crate::record::cpu::load().unwrap_or_default(),
                rmem_max: crate::netns::number("net.core.rmem_max"),
                wmem_max: crate::netns::number("net.core.wmem_max"),
            },
            hosts: self.host_results(seconds),
            links,
            commands,
            servers,
            traffic,
            connections,
            warnings: self.warnings.lock().clone(),
            series,
        }
    }
}

impl Lab {
    fn link_results(&mut self, series: &mut Series) -> Vec<LinkResult> {
        let mut results = Vec::new();
        for (index, link) in std::mem::take(&mut self.links).into_iter().enumerate() {
            let offset = self.zero.saturating_duration_since(link.started).as_secs_f64();
            let report = link.emulator.stop();
            let after: Vec<_> = report.series.iter().filter(|sample| sample.at > offset).collect();
            series.links.push(LinkSeries {
                forward: direction_series(&after, offset, |sample| &sample.forward),
                backward: direction_series(&after, offset, |sample| &sample.backward),
            });
            let between = self.context.scenario.links[index].between.clone();
            let name = between.join(" - ");
            let (end, timing) = (&report.end, &report.end.timing);
            if timing.lateness.p99 > LATE {
                let milliseconds = timing.lateness.p99 * 1e3;
                self.warn(format!(
                    "link {name}: 1 % of the packets were delivered {milliseconds:.1} ms late or more"
                ));
            }
            let overrun = end.forward.overrun + end.backward.overrun;
            if overrun > 0 {
                self.warn(format!(
                    "link {name}: {overrun} packets were lost since the emulator did not keep up"
                ));
            }
            for problem in &end.problems {
                self.warn(format!("link {name}: {problem}"));
            }
            results.push(LinkResult {
                between,
                forward: direction_result(&end.forward, &link.before[0], &after, |sample| &sample.forward),
                backward: direction_result(&end.backward, &link.before[1], &after, |sample| &sample.backward),
                realtime: timing.realtime,
                cpu: timing.cpu,
                late: [timing.lateness.p50, timing.lateness.p99, timing.lateness.max],
            });
        }
        results
    }

    fn host_results(&self, seconds: f64) -> Vec<HostResult> {
        let result = |host: &crate::netns::HostSpace| {
            let name = host.name();
            let ends = self.context.topology.of(name);
            let applied = self.applied.get(name);
            let limit = self.context.scenario.hosts.get(name).and_then(|host| host.disk.clone());
            let disk = limit.zip(self.disks.get(name)).map(|(limit, disk)| {
                let (read, written, busy) = disk.moved();
                let busy = if seconds > 0.0 { (busy / seconds).min(1.0) } else { 0.0 };
                DiskResult { limit, read, written, busy }
            });
            let by_route = applied.is_some_and(|applied| applied.by_route.is_some());
            HostResult {
                name: name.to_owned(),
                addresses: ends.iter().flat_map(|end| [end.v4.to_string(), end.v6.to_string()]).collect(),
                kernel: applied.map(|applied| applied.kernel.clone()).unwrap_or_default(),
                congestion_by: if by_route { "route" } else { "sysctl" }.into(),
                disk,
            }
        };
        self.hosts.iter().map(result).collect()
    }

    fn program_results(
        &self,
        end: Instant,
        programs: &[Watched],
        series: &Series,
    ) -> (Vec<CommandResult>, Vec<CommandResult>) {
        let scenario = &self.context.scenario;
        let commands =
            scenario.commands.iter().zip(&self.commands).enumerate().map(|(index, (command, program))| {
                let names = (command.name.as_str(), command.host.as_str());
                let mut result =
                    self.program_result(names, program.as_ref(), programs.get(index), end, series);
                result.background = command.background;
                result.bytes = command.bytes.as_ref().and_then(|bytes| self.bytes(bytes, &command.host));
                let moved = result.bytes.filter(|_| result.seconds > 0.0 && result.end == End::Exit(0));
                result.goodput = moved.map(|bytes| bytes as f64 * 8.0 / result.seconds);
                result
            });
        let commands: Vec<_> = commands.collect();
        let servers =
            scenario.servers.iter().zip(&self.servers).enumerate().map(|(index, (server, program))| {
                let names = (server.name.as_str(), server.host.as_str());
                self.program_result(names, Some(program), programs.get(commands.len() + index), end, series)
            });
        let servers = servers.collect();
        (commands, servers)
    }

    fn program_result(
        &self,
        (name, host): (&str, &str),
        program: Option<&Program>,
        watched: Option<&Watched>,
        end: Instant,
        series: &Series,
    ) -> CommandResult {
        let mut result =
            CommandResult { name: name.to_owned(), host: host.to_owned(), ..CommandResult::default() };
        // A command in the background may not have been started.
        let Some(program) = program else { return result };
        let keep = self.context.scenario.record.output.0 as usize;
        let process = &program.process;
        let seconds = |time: Instant| time.saturating_duration_since(self.zero).as_secs_f64();
        let ended = program.ended.map_or(end, |ended| ended.at);
        let cpu =
            watched.map(|watched| watched.cpu).or(program.ended.map(|ended| ended.cpu)).unwrap_or_default();
        (result.start, result.seconds) =
            (seconds(process.started), seconds(ended) - seconds(process.started));
        result.end = program.ended.map_or(End::Stopped, |ended| ended.end);
        (result.cpu_user, result.cpu_system) = (cpu.user, cpu.system);
        result.run.clone_from(&program.arguments);
        result.stdout = process.output.text(0, keep);
        result.stderr = process.output.text(1, keep);
        if let Some(of_host) = series.hosts.iter().find(|series| series.host == host) {
            let during = series.times.iter().zip(&of_host.streams);
            let during = during.filter(|(time, _)| (result.start..=seconds(ended)).contains(*time));
            result.streams_max = during.map(|(_, streams)| *streams).max().unwrap_or_default();
        }
        result
    }

    fn bytes(&self, bytes: &Value, host: &str) -> Option<u64> {
        let text = self.context.fill(&bytes.to_string(), host).ok()?;
        match text.parse::<Size>() {
            Ok(size) => Some(size.0),
            Err(error) => {
                self.warn(format!("`bytes`: {error}"));
                None
            }
        }
    }
}

/// The difference of the counters since `before`; `after` has the steps since then.
fn direction_result(
    counters: &emulator::Counters,
    before: &emulator::Counters,
    after: &[&emulator::Sample],
    of: impl Fn(&emulator::Sample) -> &emulator::Step,
) -> DirectionResult {
    let since = |count: &dyn Fn(&emulator::Counters) -> u64| count(counters).saturating_sub(count(before));
    let longest = || after.iter().map(|sample| of(sample).queue_max).max().unwrap_or(0);
    DirectionResult {
        packets_in: since(&|of| of.packets_in),
        packets_out: since(&|of| of.packets_out),
        bytes: since(&|of| of.bytes_out),
        dropped: since(&emulator::Counters::dropped),
        lost: since(&|of| of.lost),
        marked: since(&|of| of.marked),
        reordered: since(&|of| of.reordered),
        // If the maximum has increased, it was reached since then.
        queue_max: if counters.waiting_max > before.waiting_max { counters.waiting_max } else { longest() },
        overrun: since(&|of| of.overrun),
    }
}

fn direction_series(
    samples: &[&emulator::Sample],
    offset: f64,
    of: impl Fn(&emulator::Sample) -> &emulator::Step,
) -> DirectionSeries {
    let mut series = DirectionSeries::default();
    for sample in samples {
        let step = of(sample);
        series.times.push(sample.at - offset);
        series.offered.push(step.offered);
        series.rate.push(step.rate);
        series.queue.push(step.queue);
        series.queue_max.push(step.queue_max);
        series.queue_delay.push(step.queue_delay);
        series.queue_average.push(step.queue_average);
        series.dropped.push(step.dropped);
        series.lost.push(step.lost);
        series.marked.push(step.marked);
    }
    series
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn direction_result_counts_from_time_zero() {
        let before = emulator::Counters {
            packets_in: 100,
            bytes_out: 140_000,
            dropped_full: 3,
            lost: 2,
            waiting_max: 50,
            ..Default::default()
        };
        let end = emulator::Counters {
            packets_in: 150,
            bytes_out: 200_000,
            dropped_full: 4,
            dropped_red: 1,
            lost: 2,
            ..before
        };
        let step = emulator::Step { queue_max: 7, ..Default::default() };
        let sample = emulator::Sample { at: 1.0, step: 0.1, forward: step, backward: step };
        let result = direction_result(&end, &before, &[&sample], |sample| &sample.forward);
        let wanted =
            DirectionResult { packets_in: 50, bytes: 60_000, dropped: 2, queue_max: 7, ..Default::default() };
        assert_eq!(result, wanted);
        let longer = emulator::Counters { waiting_max: 60, ..end };
        assert_eq!(direction_result(&longer, &before, &[], |sample| &sample.forward).queue_max, 60);
    }
}
