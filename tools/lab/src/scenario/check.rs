//! Checks of a scenario that its types cannot express: names refer to existing hosts, links form a
//! tree, placeholders are known, values are within their bounds. An error has the field and a
//! message; the caller finds the line of the field.

use super::{Command, File, FileKind, Host, Ready, Run, Scenario, Time, Topology, Value, template, topology};
use crate::emulator;
use std::collections::{BTreeMap, BTreeSet};

type Wrong = (String, String);

/// Names of placeholders that cannot be names of variables.
const OWN_NAMES: [&str; 7] = ["addr", "addr6", "dir", "disk", "host", "port", "seed"];

pub(super) fn check(scenario: &Scenario) -> Result<(), Wrong> {
    if scenario.record.interval.0.as_millis() < 10 {
        return Err(("record.interval".into(), "expected at least 10ms".into()));
    }
    if scenario.timeout.0.is_zero() {
        return Err(("timeout".into(), "expected more than 0".into()));
    }
    for (index, host) in scenario.record.hosts.iter().flatten().enumerate() {
        known(scenario, host).map_err(|wrong| (format!("record.hosts[{index}]"), wrong))?;
    }
    for name in scenario.variables.keys() {
        if OWN_NAMES.contains(&name.as_str()) || name == "ropewalk" {
            return Err((format!("variables.{name}"), "this name has a meaning of its own in braces".into()));
        }
    }
    for (name, host) in &scenario.hosts {
        check_host(scenario, name, host)?;
    }
    check_links(scenario)?;
    let mut names = BTreeSet::new();
    for (index, traffic) in scenario.traffic.iter().enumerate() {
        let at = |field: &str| format!("traffic[{index}].{field}");
        unique(&mut names, &traffic.name).map_err(|wrong| (at("name"), wrong))?;
        known(scenario, &traffic.from).map_err(|wrong| (at("from"), wrong))?;
        known(scenario, &traffic.to).map_err(|wrong| (at("to"), wrong))?;
        if traffic.from == traffic.to {
            return Err((at("to"), "expected another host than `from`".into()));
        }
        if !(1..=10_000).contains(&traffic.flows) {
            return Err((at("flows"), "expected 1 to 10000".into()));
        }
        if traffic.stop.is_some_and(|stop| stop <= traffic.start) {
            return Err((at("stop"), format!("expected a time after the start, {}", traffic.start)));
        }
        if traffic.on.is_some() != traffic.off.is_some() {
            return Err((
                at(if traffic.on.is_some() { "on" } else { "off" }),
                "`on` and `off` go together".into(),
            ));
        }
        if traffic.on.is_some_and(|on| on.0.is_zero()) {
            return Err((at("on"), "expected more than 0".into()));
        }
    }
    check_programs(scenario, &mut names)
}

fn check_host(scenario: &Scenario, name: &str, host: &Host) -> Result<(), Wrong> {
    let field = format!("hosts.{name}");
    let letters = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
    if name.is_empty() || name.len() > 32 || !letters || name.starts_with('-') || name == "localhost" {
        let message = "expected a host name: up to 32 letters, digits and hyphens, not `localhost`";
        return Err((field, message.into()));
    }
    let kernel = scenario.kernel.overlaid(&host.kernel);
    if kernel.congestion.is_none() {
        let message = "no congestion control is stated, here or in [kernel] for all hosts; expected for example \
                       kernel.congestion = \"cubic\"";
        return Err((field, message.into()));
    }
    for (place, kernel) in [(format!("{field}.kernel"), &host.kernel), ("kernel".into(), &scenario.kernel)] {
        for name in kernel.sysctl.keys() {
            let expected = match name.as_str() {
                "net.ipv4.tcp_congestion_control" => "set kernel.congestion instead",
                "net.ipv4.tcp_rmem" => "set kernel.tcp_rmem instead",
                "net.ipv4.tcp_wmem" => "set kernel.tcp_wmem instead",
                name if !name.starts_with("net.") => {
                    "only settings below `net.` belong to a host; others are the machine's"
                }
                name if name.contains("..") || name.contains('\0') => {
                    "expected a setting such as net.ipv4.tcp_sack"
                }
                _ => continue,
            };
            return Err((format!("{place}.sysctl.\"{name}\""), expected.into()));
        }
        for (name, value) in [("tcp_rmem", kernel.tcp_rmem), ("tcp_wmem", kernel.tcp_wmem)] {
            if value.is_some_and(|[least, first, most]| least > first || first > most) {
                return Err((
                    format!("{place}.{name}"),
                    "expected [least, first, most] in rising order".into(),
                ));
            }
        }
    }
    if let Some(disk) = &host.disk
        && disk.read.is_none()
        && disk.write.is_none()
        && disk.latency.0.is_zero()
    {
        return Err((
            format!("{field}.disk"),
            "it limits nothing: expected `read`, `write` or `latency`".into(),
        ));
    }
    check_environment(scenario, &field, &host.environment)
}

fn check_links(scenario: &Scenario) -> Result<(), Wrong> {
    if scenario.links.len() > topology::MAX_LINKS {
        return Err(("links".into(), format!("expected at most {}", topology::MAX_LINKS)));
    }
    for (index, link) in scenario.links.iter().enumerate() {
        let at = |field: &str| format!("links[{index}].{field}");
        for (end, host) in link.between.iter().enumerate() {
            known(scenario, host).map_err(|wrong| (at(&format!("between[{end}]")), wrong))?;
        }
        if link.between[0] == link.between[1] {
            return Err((at("between"), "expected two hosts, not the same twice".into()));
        }
        let wrong = |error: emulator::ConfigError, place: &str| {
            let error = error.within(&at(place));
            (error.field, format!("expected {}, found {}", error.expected, error.found))
        };
        link.path.validate().map_err(|error| wrong(error, "path"))?;
        if link.path.mtu < 1280 {
            return Err((at("path.mtu"), "expected at least 1280, the least that IPv6 works with".into()));
        }
        for (position, change) in link.changes.iter().enumerate() {
            let before = emulator::check_schedule(&link.path, &link.changes[..=position]);
            before.map_err(|error| {
                (
                    at(&format!("changes[{position}]")),
                    format!("{}: expected {}, found {}", error.field, error.expected, error.found),
                )
            })?;
            if change.mtu.is_some_and(|mtu| mtu < 1280) {
                return Err((at(&format!("changes[{position}].mtu")), "expected at least 1280".into()));
            }
        }
    }
    let topology = Topology::new(scenario);
    for host in scenario.hosts.keys() {
        if topology.routes(host).is_none() {
            let message =
                format!("hosts and links are no tree: from {host} some host is not reached, or in two ways");
            return Err(("links".into(), message));
        }
    }
    Ok(())
}

fn check_programs<'a>(scenario: &'a Scenario, names: &mut BTreeSet<&'a str>) -> Result<(), Wrong> {
    for (index, file) in scenario.files.iter().enumerate() {
        check_file(scenario, &format!("files[{index}]"), file)?;
    }
    for (index, prepare) in scenario.prepare.iter().enumerate() {
        let field = format!("prepare[{index}]");
        check_program(scenario, &field, &prepare.host, &prepare.run, &prepare.environment)?;
    }
    for (index, server) in scenario.servers.iter().enumerate() {
        let field = format!("servers[{index}]");
        unique(names, &server.name).map_err(|wrong| (format!("{field}.name"), wrong))?;
        check_program(scenario, &field, &server.host, &server.run, &server.environment)?;
        if let Some(Ready::Port(Value::Text(text)) | Ready::Line(text)) = &server.ready {
            check_texts(scenario, &format!("{field}.ready"), [text])?;
        }
    }
    for (index, command) in scenario.commands.iter().enumerate() {
        let field = format!("commands[{index}]");
        unique(names, &command.name).map_err(|wrong| (format!("{field}.name"), wrong))?;
        check_program(scenario, &field, &command.host, &command.run, &command.environment)?;
        if let Some(Value::Text(text)) = &command.bytes {
            check_texts(scenario, &format!("{field}.bytes"), [text])?;
        }
        check_order(&scenario.commands, index, scenario.timeout)?;
    }
    Ok(())
}

/// A command may only start after commands that precede it in the file, so there are no cycles.
fn check_order(commands: &[Command], index: usize, timeout: Time) -> Result<(), Wrong> {
    let command = &commands[index];
    if let Some(at) = command.at.filter(|at| *at >= timeout) {
        let message = format!("{at} is not before the scenario's timeout, {timeout}");
        return Err((format!("commands[{index}].at"), message));
    }
    if command.at.is_some() && command.after.is_some() {
        return Err((format!("commands[{index}].after"), "`at` and `after` exclude each other".into()));
    }
    if command.at.is_some() && command.delay != Time::default() {
        let message = "`delay` counts from the end of other commands, so it does not go with `at`";
        return Err((format!("commands[{index}].delay"), message.into()));
    }
    for (position, name) in command.after.iter().flatten().enumerate() {
        let field = format!("commands[{index}].after[{position}]");
        match commands[..index].iter().find(|earlier| earlier.name == *name) {
            None => return Err((field, format!("no command `{name}` stands before this one"))),
            Some(earlier) if earlier.background => {
                return Err((field, format!("`{name}` runs in the background: it ends with the run")));
            }
            Some(_) => {}
        }
    }
    Ok(())
}

fn check_file(scenario: &Scenario, field: &str, file: &File) -> Result<(), Wrong> {
    let at = |name: &str| format!("{field}.{name}");
    known(scenario, &file.host).map_err(|wrong| (at("host"), wrong))?;
    let content = file.size.is_some() || file.text.is_some() || file.count.is_some();
    match file.kind {
        None if file.size.is_some() == file.text.is_some() => {
            return Err((at("path"), "expected either `size` or `text`".into()));
        }
        Some(FileKind::Hole) if file.size.is_none() || file.text.is_some() => {
            return Err((at("kind"), "a hole goes with `size`".into()));
        }
        Some(FileKind::Null) if content => {
            return Err((at("kind"), "`null` goes without `size`, `count` and `text`".into()));
        }
        _ => {}
    }
    if file.count.is_some() && file.size.is_none() {
        return Err((at("count"), "goes with `size`".into()));
    }
    let inside = ["{dir}", "{disk}"].iter().any(|root| file.path.starts_with(root));
    if !inside || file.path.split('/').any(|part| part == "..") {
        return Err((at("path"), "expected a path below {dir} or {disk}, as in \"{disk}/data\"".into()));
    }
    if file.mode.as_ref().is_some_and(|mode| u32::from_str_radix(mode, 8).is_err()) {
        return Err((at("mode"), "expected octal digits, as in \"0644\"".into()));
    }
    check_texts(scenario, &at("path"), [&file.path])?;
    check_texts(scenario, &at("text"), &file.text)
}

fn check_program(
    scenario: &Scenario,
    field: &str,
    host: &str,
    run: &Run,
    environment: &BTreeMap<String, String>,
) -> Result<(), Wrong> {
    known(scenario, host).map_err(|wrong| (format!("{field}.host"), wrong))?;
    let at = format!("{field}.run");
    match run {
        Run::Shell(text) => check_texts(scenario, &at, [text])?,
        Run::Program(words) if words.is_empty() => {
            return Err((at, "expected at least the program's name".into()));
        }
        Run::Program(words) => check_texts(scenario, &at, words)?,
    }
    check_environment(scenario, field, environment)
}

fn check_environment(
    scenario: &Scenario,
    field: &str,
    environment: &BTreeMap<String, String>,
) -> Result<(), Wrong> {
    let field = format!("{field}.environment");
    if let Some(name) = environment.keys().find(|name| name.is_empty() || name.contains(['=', '\0'])) {
        return Err((field, format!("`{}` is no name of a variable", name.escape_debug())));
    }
    check_texts(scenario, &field, environment.values())
}

fn check_texts<'a>(
    scenario: &Scenario,
    field: &str,
    texts: impl IntoIterator<Item = &'a String>,
) -> Result<(), Wrong> {
    for text in texts {
        let wrong = |message| (field.to_owned(), message);
        if text.contains('\0') {
            return Err(wrong("contains a NUL byte".into()));
        }
        template::fill(text, |kind, argument| check_name(scenario, kind, argument)).map_err(wrong)?;
    }
    Ok(())
}

fn check_name(scenario: &Scenario, kind: &str, argument: Option<&str>) -> Result<String, String> {
    match (kind, argument) {
        ("addr" | "addr6", None) => Err(format!("{{{kind}}}: expected a host, as in {{{kind}:right}}")),
        ("addr" | "addr6" | "dir" | "disk", Some(host)) => {
            known(scenario, host).map_err(|wrong| format!("{{{kind}:{host}}}: {wrong}"))
        }
        ("port", None) => Err("{port}: expected a name, as in {port:server}".into()),
        ("port", Some(_)) | ("dir" | "disk" | "host" | "seed" | "ropewalk", None) => Ok(()),
        (name, None) if scenario.variables.contains_key(name) => Ok(()),
        (name, None) => Err(format!("{{{name}}} is unknown: no variable of this name is in [variables]")),
        (kind, Some(argument)) => Err(format!("{{{kind}:{argument}}} is unknown")),
    }
    .map(|()| String::new())
}

fn known(scenario: &Scenario, host: &str) -> Result<(), String> {
    if scenario.hosts.contains_key(host) {
        return Ok(());
    }
    let hosts: Vec<_> = scenario.hosts.keys().map(String::as_str).collect();
    Err(format!("there is no host `{host}`; there are {}", hosts.join(", ")))
}

fn unique<'a>(names: &mut BTreeSet<&'a str>, name: &'a str) -> Result<(), String> {
    let letters = name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'));
    if name.is_empty() || name.len() > 64 || !letters || name.starts_with('.') {
        return Err(format!("`{name}`: expected up to 64 letters, digits, `-`, `_` and `.`"));
    }
    if names.insert(name) {
        Ok(())
    } else {
        Err(format!("`{name}` is taken by another server, command or traffic"))
    }
}
