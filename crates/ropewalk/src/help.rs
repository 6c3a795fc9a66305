//! Additions to help, man pages and completions beyond the options: examples, groups of commands,
//! kinds of values.

use clap::{Arg, Command, ValueHint};

/// The commands under their headings, in the order of help.
const GROUPS: [(&str, &[&str]); 6] = [
    ("Copy", &["cp", "sync", "jobs", "check", "clean"]),
    ("Look and change", &["ls", "stat", "find", "du", "cat", "sum", "mkdir", "mv", "rm", "space"]),
    (
        "Choose and reserve network paths and transfers",
        &["route", "reserve", "reservations", "cancel", "slots"],
    ),
    ("Serve and log in", &["serve", "node", "admin", "gateway", "passwd", "proxy", "known-hosts", "ca"]),
    ("Measure and tune", &["doctor", "profile", "report", "model", "buffers", "lab"]),
    ("Program", &["config", "sites", "globus-url-copy", "completions", "man"]),
];

/// Command (`lab run`) and example command lines.
const EXAMPLES: &[(&str, &[&str])] = &[
    (
        "cp",
        &[
            "ropewalk cp big.tar ftpes://ada@data.example:2811/in/",
            "ropewalk cp -r sshftp://data.example/run42/ run42/",
            "ropewalk cp -r gsiftp://a.example/data/ gsiftp://b.example/data/",
            "ropewalk cp --path hook:/etc/ropewalk/circuit big.tar gsiftp://b.example/in/",
        ],
    ),
    ("sync", &["ropewalk sync sshftp://data.example/run42/ run42/"]),
    ("check", &["ropewalk check run42/ sshftp://data.example/run42/"]),
    ("ls", &["ropewalk ls -l ftp://data.example:2811/run42/"]),
    ("stat", &["ropewalk stat ftp://data.example:2811/run42/big.tar"]),
    ("find", &["ropewalk find ftp://data.example:2811/run42/ --name '*.h5' --size +1G"]),
    ("du", &["ropewalk du ftp://data.example:2811/run42/"]),
    ("cat", &["ropewalk cat ftp://data.example:2811/run42/log.txt | less"]),
    ("sum", &["ropewalk sum -a sha256 sshftp://data.example/run42/big.tar"]),
    ("mkdir", &["ropewalk mkdir -p sshftp://data.example/in/run42"]),
    ("mv", &["ropewalk mv sshftp://data.example/in/a sshftp://data.example/in/b"]),
    ("rm", &["ropewalk rm -r sshftp://data.example/in/run41"]),
    ("clean", &["ropewalk clean --older 7d run42/"]),
    (
        "serve",
        &["ropewalk serve --root /data --anonymous", "ropewalk serve --config /etc/ropewalk/server.toml"],
    ),
    ("node", &["ropewalk node --join front.example:2812 --join-token-file /etc/ropewalk/join --root /data"]),
    (
        "space",
        &[
            "ropewalk space usage gsiftp://a.example/data/atlas/",
            "ropewalk space reserve gsiftp://a.example/data/atlas/ 2TiB --for 3h",
            "ropewalk space list gsiftp://a.example/ --json",
        ],
    ),
    (
        "slots",
        &[
            "ropewalk slots reserve gsiftp://b.example/ --slots 4 --bandwidth 1Gbit/s --from 22:00 --for 3h",
            "ropewalk slots list gsiftp://b.example/ --json",
        ],
    ),
    ("jobs", &["ropewalk jobs", "ropewalk jobs limit 4711 200Mbit/s"]),
    (
        "admin",
        &[
            "ropewalk admin --socket /run/ropewalk/admin sessions",
            "ropewalk admin --socket /run/ropewalk/admin kick 42",
            "ropewalk admin --socket /run/ropewalk/admin limits --json",
        ],
    ),
    (
        "gateway",
        &[
            "ropewalk gateway --authorized-hosts 10.1.0.0/16 --credential /etc/ropewalk/proxy",
            "ropewalk gateway --listen 127.0.0.1:2121 --authorized-hosts 127.0.0.1 --allow-target 10.0.0.0/8",
        ],
    ),
    ("passwd", &["ropewalk passwd ada", "ropewalk passwd --list"]),
    ("proxy", &["ropewalk proxy init"]),
    ("known-hosts", &["ropewalk known-hosts list", "ropewalk known-hosts forget data.example"]),
    (
        "ca",
        &[
            "ropewalk ca init --namespace /O=Grid/OU=example",
            "ropewalk ca host dtn.example.org",
            "ropewalk ca user 'Ada Lovelace' --map ada",
        ],
    ),
    ("route", &["ropewalk route gsiftp://a.example/ . --relays gsiftp://b.example,gsiftp://c.example"]),
    ("reserve", &["ropewalk reserve hook:/etc/ropewalk/circuit --from 22:00 --for 3h --rate 5Gbit/s"]),
    ("reservations", &["ropewalk reservations --json"]),
    ("cancel", &["ropewalk cancel 6b1c4a1e-9d0f-4b7e-8a2c-0d5e6f7a8b9c"]),
    ("doctor", &["ropewalk doctor --rate 10Gbit/s --rtt 80ms", "ropewalk doctor --rdma"]),
    ("profile", &["ropewalk profile big.tar gsiftp://far.example/in/"]),
    ("report", &["ropewalk report profile.json"]),
    ("model", &["ropewalk model -b 10Gbit/s --rtt 80ms --buffer 4MiB"]),
    ("buffers", &["ropewalk buffers --policy max-min --budget 64MiB"]),
    (
        "lab",
        &["sudo ropewalk lab match transatlantic-lossy --program ropewalk --program 'globus-url-copy -p 8'"],
    ),
    ("config", &["ropewalk config show"]),
    ("sites", &["ropewalk sites"]),
    ("globus-url-copy", &["ropewalk globus-url-copy -vb -p 4 gsiftp://data.example/f file:///tmp/f"]),
    ("completions", &["ropewalk completions bash > /etc/bash_completion.d/ropewalk"]),
    ("man", &["ropewalk man cp | man -l -"]),
];

/// Adds groups, examples and kinds of values.
pub(crate) fn complete(command: Command) -> Command {
    let list = grouped(&command);
    let template = format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{list}Options:\n{{options}}{{after-help}}"
    );
    let mut command = command.help_template(template).mut_args(hinted);
    for (name, lines) in EXAMPLES {
        // The program may be built without the tools.
        if command.find_subcommand(name).is_none() {
            continue;
        }
        command = command.mut_subcommand(name, |below| with_examples(below, lines));
    }
    command.mut_subcommands(with_hints)
}

fn with_hints(command: Command) -> Command {
    command.mut_args(hinted).mut_subcommands(with_hints)
}

/// `-h` has the examples, `--help` also the rest of the text after the options.
fn with_examples(command: Command, lines: &[&str]) -> Command {
    let examples = lines.iter().fold(String::from("Examples:"), |text, line| text + "\n    " + line);
    let rest = command.get_after_help().map(ToString::to_string);
    let long = rest.map_or_else(|| examples.clone(), |rest| format!("{examples}\n\n{rest}"));
    command.after_help(examples).after_long_help(long)
}

/// Sets the kind of a value, for completions.
fn hinted(arg: Arg) -> Arg {
    if arg.get_value_hint() != ValueHint::Unknown {
        return arg;
    }
    let hint = match arg.get_value_names().and_then(|names| names.first()).map(|name| name.as_str()) {
        Some("FILE" | "OUT") => ValueHint::FilePath,
        Some("DIRECTORY") => ValueHint::DirPath,
        // Or URLs, which cannot be completed.
        Some("PLACE" | "PATH" | "LOCATION" | "SOURCE" | "DESTINATION" | "SCENARIO") => ValueHint::AnyPath,
        Some("HOST" | "HOST[:PORT]") => ValueHint::Hostname,
        Some("USER") => ValueHint::Username,
        _ => return arg,
    };
    arg.value_hint(hint)
}

/// The commands with their descriptions.
fn grouped(command: &Command) -> String {
    let mut text = String::new();
    let all: Vec<&Command> = command.get_subcommands().filter(|below| !below.is_hide_set()).collect();
    let width = all.iter().map(|below| below.get_name().len()).max().unwrap_or_default();
    for (heading, names) in GROUPS {
        let present = names.iter().filter_map(|name| all.iter().find(|below| below.get_name() == *name));
        let lines: Vec<String> = present
            .map(|below| {
                let about = below.get_about().map(ToString::to_string).unwrap_or_default();
                format!("  {:<width$}  {about}\n", below.get_name())
            })
            .collect();
        if !lines.is_empty() {
            text += &format!("{heading}:\n{}\n", lines.concat());
        }
    }
    text
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::cli::Cli;

    #[test]
    fn commands_have_one_group_each_and_examples_in_their_help() {
        let mut program = Cli::definition();
        for below in program.get_subcommands_mut() {
            let name = below.get_name().to_owned();
            assert_eq!(GROUPS.iter().filter(|(_, names)| names.contains(&&*name)).count(), 1, "{name}");
            for help in [below.render_help(), below.render_long_help()] {
                assert!(help.to_string().contains("Examples:\n    "), "{name}: {help}");
            }
        }
    }

    #[test]
    fn examples_are_valid_command_lines() {
        let program = Cli::definition();
        for (name, lines) in EXAMPLES {
            for line in *lines {
                let line = line.split([';', '|', '>']).next().unwrap().trim_start_matches("sudo ");
                let words = shlex::split(line).unwrap();
                assert_eq!(words[1], *name);
                if *name != "globus-url-copy" && program.find_subcommand(name).is_some() {
                    let parsed = program.clone().try_get_matches_from(&words);
                    assert!(parsed.is_ok(), "{line}: {}", parsed.unwrap_err());
                }
            }
        }
    }

    #[test]
    fn completions_have_kinds_of_values() {
        let mut text = Vec::new();
        clap_complete::generate(clap_complete::Shell::Zsh, &mut Cli::definition(), "ropewalk", &mut text);
        let text = String::from_utf8(text).unwrap();
        let places = text.lines().find(|line| line.contains("*::places -- ")).unwrap();
        assert!(places.contains(":_files'"), "{places}");
        assert!(text.contains("(auto stream extended)"), "--mode has three values");
    }
}
