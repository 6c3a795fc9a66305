//! Attaches a program and the data that it transfers to a scenario. The result is a complete
//! scenario: with the servers and files of the program, a source to read from, and one timed
//! command named [`COMMAND`]. It passes the same checks as a scenario file.

use std::collections::BTreeMap;
use std::time::Duration;

use super::LibraryError;
use super::programs::{Action, Call};
use crate::scenario::{Command, Document, File, FileKind, Run, Scenario, Size, Time, Value};

/// The name of the timed command that [`attach`] adds.
pub const COMMAND: &str = "client";

/// Variables whose values are sizes. Programs get them as plain numbers of bytes, which all
/// programs understand.
const SIZES: [&str; 2] = ["buffer", "block"];

/// The direction of the data. The client is on `left`, the server on `right`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direction {
    /// From the server to the client.
    #[default]
    Get,
    /// From the client to the server.
    Put,
}

/// The data to transfer, and how.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Workload {
    /// The direction of the data.
    pub direction: Direction,
    /// Total bytes of all files. If absent, the scenario's variable `size`, or 256 MiB if that is
    /// absent too.
    pub size: Option<u64>,
    /// Number of files, all of the same size; one file if absent.
    pub files: Option<u32>,
    /// The client is stopped after this time, and the data that has arrived until then counts.
    pub limit: Option<Duration>,
    /// Neither the source nor the destination stores the data, which is for sizes that exceed the
    /// memory. Only for a single file.
    pub unstored: bool,
    /// The source is a hole, which takes no memory.
    pub hollow: bool,
}

impl Workload {
    /// Bytes to transfer on this scenario.
    ///
    /// # Errors
    /// [`LibraryError::Variable`] if the scenario's variable `size` is not a size.
    pub fn bytes(&self, scenario: &Scenario) -> Result<u64, LibraryError> {
        match (self.size, scenario.variables.get("size")) {
            (Some(size), _) => Ok(size),
            (None, Some(value)) => size("size", value),
            (None, None) => Ok(256 << 20),
        }
    }
}

fn size(name: &str, value: &Value) -> Result<u64, LibraryError> {
    // Command lines use `64K`, scenarios use `64 KiB`.
    let text = value.to_string();
    let spelled = match text.strip_suffix(['K', 'M', 'G', 'T']) {
        Some(number) => format!("{number} {}iB", &text[number.len()..]),
        None => text,
    };
    let size: Result<Size, String> = spelled.parse();
    size.map(|size| size.0).map_err(|message| LibraryError::Variable { name: name.to_owned(), message })
}

/// Replaces the commands of `scenario` by `call`, and checks the result.
///
/// # Errors
/// [`LibraryError`]
pub fn attach(scenario: &Scenario, call: &Call, workload: &Workload) -> Result<Scenario, LibraryError> {
    let mut scenario = scenario.clone();
    for host in ["left", "right"] {
        if !scenario.hosts.contains_key(host) {
            return Err(LibraryError::NoHost { scenario: scenario.title, host });
        }
    }
    let count = workload.files.map_or(1, u64::from).max(1);
    // All files have the same whole number of bytes.
    let each = workload.bytes(&scenario)? / count;
    let bytes = each * count;
    let (action, source) = chosen(call, workload)?;
    for name in SIZES {
        // Words such as `auto` are passed to the program unchanged.
        let number = |value: &Value| value.to_string().starts_with(|c: char| c.is_ascii_digit());
        if let Some(value) = scenario.variables.get_mut(name).filter(|value| number(value)) {
            *value = Value::Integer(i64::try_from(size(name, value)?).unwrap_or(i64::MAX));
        }
    }
    let arguments = arguments(&scenario, call, action);
    let words = if workload.unstored { action.unstored.as_ref() } else { Some(&action.run) };
    let run = filled(words.ok_or_else(|| unable(call, "move data without storing any"))?, &arguments);
    scenario.variables.insert("bytes".into(), Value::Integer(i64::try_from(bytes).unwrap_or(i64::MAX)));

    scenario.servers.extend(call.program.servers.clone());
    scenario.files.extend(call.program.files.clone());
    scenario.files.push(File {
        host: source.into(),
        path: "{disk}/source".into(),
        size: Some(Size(each)),
        kind: (workload.unstored || workload.hollow).then_some(FileKind::Hole),
        count: workload.files,
        text: None,
        mode: None,
    });
    if workload.unstored {
        scenario.files.push(File {
            host: if source == "left" { "right" } else { "left" }.into(),
            path: "{disk}/dev/null".into(),
            size: None,
            kind: Some(FileKind::Null),
            count: None,
            text: None,
            mode: None,
        });
    }
    if let Some(limit) = workload.limit {
        scenario.timeout = Time(limit + Duration::from_secs(120));
    }
    scenario.commands = vec![Command {
        name: COMMAND.into(),
        host: "left".into(),
        run: Run::Program(run),
        at: None,
        after: None,
        delay: Time::default(),
        background: false,
        timeout: None,
        may_fail: false,
        stop: workload.limit.map(Time),
        bytes: Some(Value::Integer(i64::try_from(bytes).unwrap_or(i64::MAX))),
        environment: call.program.environment.clone(),
    }];
    checked(&scenario, &call.label)
}

fn chosen<'a>(call: &'a Call, workload: &Workload) -> Result<(&'a Action, &'static str), LibraryError> {
    let program = &call.program;
    let (action, what, source) = match (workload.direction, workload.files) {
        (Direction::Get, None) => (&program.get, "get a file", "right"),
        (Direction::Put, None) => (&program.put, "put a file", "left"),
        (Direction::Get, Some(_)) => (&program.get_tree, "get a directory", "right"),
        (Direction::Put, Some(_)) => (&program.put_tree, "put a directory", "left"),
    };
    Ok((action.as_ref().ok_or_else(|| unable(call, what))?, source))
}

fn unable(call: &Call, action: &'static str) -> LibraryError {
    LibraryError::Unable { program: call.program.name.clone(), action }
}

/// The arguments after the program's name, then the options of the variables that are set.
fn arguments(scenario: &Scenario, call: &Call, action: &Action) -> Vec<String> {
    let options: BTreeMap<_, _> = call.program.options.iter().chain(&action.options).collect();
    let set = options.into_iter().filter(|(name, _)| scenario.variables.contains_key(*name));
    let words: Vec<String> =
        call.words.iter().cloned().chain(set.flat_map(|(_, words)| words.clone())).collect();
    if words.is_empty() { action.default.clone() } else { words }
}

/// A word that is just `{args}` becomes one word per argument; within a longer word the arguments
/// are joined by spaces.
fn filled(run: &[String], arguments: &[String]) -> Vec<String> {
    run.iter()
        .flat_map(|word| match word.as_str() {
            "{args}" => arguments.to_vec(),
            word => vec![word.replace("{args}", &arguments.join(" "))],
        })
        .collect()
}

/// Converts the scenario to text and reads it again, so that it passes all checks of a scenario
/// file.
fn checked(scenario: &Scenario, label: &str) -> Result<Scenario, LibraryError> {
    let text = toml::to_string(scenario)
        .map_err(|error| LibraryError::Program { origin: label.to_owned(), message: error.to_string() })?;
    Ok(Document::parse(&text, &format!("{} on {}", label, scenario.title))?.scenario()?)
}

impl Call {
    /// Whether a variable of this name changes the command line of the program.
    pub fn uses(&self, variable: &str, workload: &Workload) -> bool {
        let Ok((action, _)) = chosen(self, workload) else { return false };
        let braces = format!("{{{variable}}}");
        let has_option = self.program.options.contains_key(variable) || action.options.contains_key(variable);
        has_option || self.words.iter().chain(&action.run).any(|word| word.contains(&braces))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::{PROGRAMS, SCENARIOS, open};
    use super::*;

    fn run_of(scenario: &Scenario) -> Vec<String> {
        match &scenario.commands[0].run {
            Run::Program(words) => words.clone(),
            Run::Shell(text) => vec![text.clone()],
        }
    }

    #[test]
    fn attach_of_every_program_to_every_scenario_succeeds() {
        for entry in SCENARIOS {
            let scenario = entry.document().unwrap().scenario().unwrap();
            for (name, _) in PROGRAMS {
                let call = Call::parse(name).unwrap();
                for direction in [Direction::Get, Direction::Put] {
                    for files in [None, Some(10)] {
                        let workload = Workload { direction, files, ..Workload::default() };
                        match attach(&scenario, &call, &workload) {
                            Ok(attached) => assert_eq!(attached.commands[0].name, COMMAND),
                            Err(LibraryError::Unable { .. }) if files.is_some() => {}
                            Err(error) => panic!("{name} on {}: {error}", entry.name),
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn attach_with_variables_adds_options_after_the_arguments() {
        let mut document = open("paper-100ms").unwrap();
        document.set("variables.streams", &Value::Integer(8)).unwrap();
        document.set("variables.buffer", &Value::Text("64 KiB".into())).unwrap();
        let scenario = document.scenario().unwrap();
        let workload = Workload { limit: Some(Duration::from_secs(30)), ..Workload::default() };
        let attached = attach(&scenario, &Call::parse("globus-url-copy -fast").unwrap(), &workload).unwrap();
        assert_eq!(
            run_of(&attached)[..6],
            ["globus-url-copy", "-fast", "-tcp-bs", "{buffer}", "-p", "{streams}"]
        );
        assert_eq!(attached.variables["buffer"], Value::Integer(65536));
        assert_eq!(attached.commands[0].stop, Some(Time::seconds(30)));
        let attached = attach(&scenario, &Call::parse("lftp").unwrap(), &workload).unwrap();
        assert!(run_of(&attached)[2].contains("; pget -n {streams} source -o "), "{:?}", run_of(&attached));
        let put = Workload { direction: Direction::Put, ..workload };
        let attached = attach(&scenario, &Call::parse("lftp").unwrap(), &put).unwrap();
        assert!(run_of(&attached)[2].contains("; put {disk}/source "), "{:?}", run_of(&attached));
    }

    #[test]
    fn attach_without_storage_reads_a_hole_and_writes_to_null() {
        let scenario = open("metro").unwrap().scenario().unwrap();
        let get = Workload { size: Some(1 << 40), unstored: true, ..Workload::default() };
        for name in ["ropewalk", "ropewalk-gct", "ropewalk-third", "globus-url-copy"] {
            for (direction, ends) in
                [(Direction::Get, ["right", "left"]), (Direction::Put, ["left", "right"])]
            {
                let call = Call::parse(name).unwrap();
                let attached = attach(&scenario, &call, &Workload { direction, ..get.clone() }).unwrap();
                let kinds: Vec<_> =
                    attached.files.iter().map(|file| (file.host.as_str(), file.kind)).collect();
                assert_eq!(
                    kinds,
                    [(ends[0], Some(FileKind::Hole)), (ends[1], Some(FileKind::Null))],
                    "{name}"
                );
                let run = run_of(&attached).join(" ");
                assert!(run.ends_with("null:") || run.ends_with("/dev/null"), "{run}");
            }
        }
        // GCT's servers read a device as a whole, so between two of them such a transfer could not
        // be tuned.
        for unable in ["curl", "ropewalk-third-gct"] {
            let none = attach(&scenario, &Call::parse(unable).unwrap(), &get);
            assert!(matches!(none, Err(LibraryError::Unable { .. })), "{unable}");
        }
    }

    #[test]
    fn attach_with_many_files_states_the_total_of_all_files() {
        let scenario = open("metro").unwrap().scenario().unwrap();
        let workload = Workload { size: Some(1000), files: Some(300), ..Workload::default() };
        let attached = attach(&scenario, &Call::parse("ropewalk").unwrap(), &workload).unwrap();
        let file = attached.files.iter().find(|file| file.path == "{disk}/source").unwrap();
        assert_eq!((file.size, file.count), (Some(Size(3)), Some(300)));
        assert_eq!(attached.commands[0].bytes, Some(Value::Integer(900)));
        assert_eq!(attached.variables["bytes"], Value::Integer(900));
    }

    #[test]
    fn size_with_or_without_unit_is_parsed() {
        for (text, bytes) in
            [("64K", 65536), ("64 KiB", 65536), ("1M", 1 << 20), ("1 MB", 1_000_000), ("7", 7)]
        {
            assert_eq!(size("x", &Value::Text(text.into())).unwrap(), bytes, "{text}");
        }
        assert!(size("x", &Value::Text("auto".into())).is_err());
    }

    #[test]
    fn call_uses_only_variables_of_its_template_and_arguments() {
        let get = Workload::default();
        assert!(Call::parse("iperf3").unwrap().uses("streams", &get));
        assert!(Call::parse("curl --limit-rate {limit}").unwrap().uses("limit", &get));
        assert!(!Call::parse("curl").unwrap().uses("streams", &get));
    }
}
