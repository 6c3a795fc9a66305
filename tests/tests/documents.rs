//! Checks the statements of the documents about tests, set-up, and settings.
#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use ropewalk_tests::scratch::Scratch;
use ropewalk_tests::wrap::wrapped;
use ropewalk_tests::{peers, process};

/// Each row of the table of bad input in docs/evaluation/security.md names tests that exist.
#[test]
fn table_of_bad_input_names_existing_tests() {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let text = fs::read_to_string(root.join("docs/evaluation/security.md")).unwrap();
    let (_, table) = text.split_once("\n## Bad input\n").unwrap();
    let mut files: HashMap<String, String> = HashMap::new();
    let (mut rows, mut named) = (0, 0);
    for row in table.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| **")).skip(1) {
        rows += 1;
        let tests = row.trim_end_matches(" |").rsplit(" | ").next().unwrap();
        for part in tests.split("; ") {
            let (file, names) = part
                .strip_prefix('`')
                .and_then(|part| part.split_once("` "))
                .unwrap_or_else(|| panic!("{row}: expected `FILE` TEST, TEST; `FILE` ..."));
            let content = files.entry(file.to_owned()).or_insert_with(|| {
                fs::read_to_string(root.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
            });
            for name in names.split(", ") {
                let is_test = content.match_indices(&format!("fn {name}(")).any(|(at, _)| {
                    content[..at]
                        .trim_end()
                        .rsplit('\n')
                        .take(3)
                        .any(|line| line.trim_start().starts_with("#[test]"))
                });
                assert!(is_test, "{file} has no test {name}, which docs/evaluation/security.md names");
                named += 1;
            }
        }
    }
    assert!(rows > 60 && named > rows, "{rows} rows name {named} tests");
}

/// The small site of docs/server.md can be set up with the printed commands, and `ropewalk serve
/// --check` reports nothing.
#[test]
fn small_site_of_the_document_passes_check() {
    if !rustix::process::geteuid().is_root() && peers::skip("only root can set up a server") {
        return;
    }
    if !peers::available(&["unshare", "mount", "useradd", "install"]) {
        return;
    }
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let text = fs::read_to_string(root.join("docs/server.md")).unwrap();
    let (_, site) = text.split_once("\n## A small site\n").unwrap();
    let (settings, rest) = site.split_once("```toml\n").unwrap().1.split_once("```\n").unwrap();
    let commands = rest.lines().skip_while(|line| !line.starts_with("    "));
    let commands: Vec<_> = commands.map_while(|line| line.strip_prefix("    ")).collect();
    let (start, commands) = commands.split_last().unwrap();
    assert!(start.contains("systemctl enable --now ropewalk"), "{start}");
    assert_eq!(commands.last(), Some(&"ropewalk serve --check"));

    let scratch = Scratch::new().unwrap();
    fs::write(scratch.join("server.toml"), settings).unwrap();
    // The script writes to a file system of this process alone, which is removed with it.
    let mut script = String::from(
        "set -e; cd \"$1\"; mkdir own; mount -t tmpfs none own\n\
         for place in etc srv var; do\n\
         mkdir own/$place own/$place.work\n\
         mount -t overlay -o \"lowerdir=/$place,upperdir=own/$place,workdir=own/$place.work\" none /$place\n\
         done\n\
         rm -rf /etc/ropewalk /srv/ropewalk /var/log/ropewalk; mkdir /etc/ropewalk; cp server.toml /etc/ropewalk/\n",
    );
    for command in commands {
        // The command reads the new password.
        let answer = if command.starts_with("ropewalk passwd") { "echo secret | " } else { "" };
        script.push_str(&format!("{answer}{command}\n"));
    }
    let program = peers::ropewalk().unwrap();
    let path = format!("{}:{}", program.parent().unwrap().display(), std::env::var("PATH").unwrap());
    let mut command = process::command("unshare");
    command.args(["--mount", "--", "sh", "-c", &script, "sh"]).arg(scratch.path()).env("PATH", path);
    let outcome = process::run(&mut command, Duration::from_secs(60)).unwrap().succeeded().unwrap();
    let said = outcome.text() + &outcome.errors();
    let problems: Vec<_> =
        said.lines().filter(|line| line.starts_with("warning") || line.starts_with("error")).collect();
    assert!(problems.is_empty(), "{said}");
}

/// docs/settings.md is generated from the comments in the source of the configuration;
/// `UPDATE_SNAPSHOTS=1` rewrites it.
#[test]
fn settings_document_is_current() {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let source = |file: &str| fs::read_to_string(root.join("crates/server/src/config").join(file)).unwrap();
    let mut text = String::from(
        "# Settings of a server\n\nThe settings of `/etc/ropewalk/server.toml`. All are optional, and an unknown setting is an error.\n\
         Times are in seconds, sizes in bytes or with K, M, G or T (powers of 1024). This document is\n\
         generated from the comments in the source.\n",
    );
    let mut settings = 0;
    for (file, name, section) in SECTIONS {
        text.push_str(&format!("\n## {section}\n\n"));
        let found = fields(&source(file), name);
        assert!(!found.is_empty(), "{file} has no fields of {name}");
        for (field, comment) in found {
            // Fields of the whole configuration that have sections of their own.
            if *name == "Config"
                && SECTIONS.iter().any(|(_, _, section)| section.contains(&format!("[{field}")))
            {
                continue;
            }
            assert!(!comment.is_empty(), "{name}.{field} has no comment");
            text.push_str(&wrapped(&format!("- `{field}`: {comment}"), 2));
            text.push('\n');
            settings += 1;
        }
    }
    assert!(settings > 100, "{settings} settings");
    let path = root.join("docs/settings.md");
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        fs::write(&path, &text).unwrap();
    }
    let there = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        there == text,
        "docs/settings.md is not what the source says: run this test with UPDATE_SNAPSHOTS=1"
    );
}

/// File, struct, and heading.
const SECTIONS: &[(&str, &str, &str)] = &[
    ("mod.rs", "Config", "At the beginning of the file"),
    ("accounts.rs", "AnonymousAccess", "`[anonymous]`"),
    ("accounts.rs", "User", "`[defaults]`, and `[users.NAME]` for one user"),
    ("identity.rs", "Identity", "`[identity]`"),
    ("access.rs", "Access", "`[access]`"),
    ("data.rs", "Data", "`[data]`"),
    ("files.rs", "Files", "`[files]`"),
    ("bandwidth.rs", "BandwidthLimit", "`[[bandwidth]]`"),
    ("bandwidth.rs", "Shares", "`[shares]`"),
    ("limits.rs", "Limits", "`[limits]`"),
    ("reservations.rs", "Reservations", "`[reservations]`"),
    ("limits.rs", "Timeouts", "`[timeouts]`"),
    ("log.rs", "Log", "`[log]`"),
    ("admin.rs", "Admin", "`[admin]`"),
    ("tls.rs", "Tls", "`[tls]`"),
    ("gsi.rs", "Gsi", "`[gsi]`"),
    ("kerberos.rs", "Kerberos", "`[kerberos]`"),
    ("tokens.rs", "TokenIssuer", "`[[tokens.issuers]]`"),
    ("tokens.rs", "TokenMapping", "`[[tokens.issuers.map]]`"),
    ("nodes.rs", "Nodes", "`[nodes]`"),
    ("paths.rs", "Paths", "`[paths]`"),
    ("space.rs", "Quota", "`[[quota]]`"),
    ("space.rs", "Space", "`[space]`"),
    ("profiling.rs", "Profiling", "`[profiling]`"),
    ("relay.rs", "Relay", "`[relay]`"),
    ("relay.rs", "RelayHop", "`[[relay.hop]]`"),
    ("scitags.rs", "SciTags", "`[scitags]`"),
    ("scitags.rs", "SciTagMapping", "Entries of `scitags.map`"),
    ("testing.rs", "Testing", "`[testing]`"),
];

/// Returns the public fields of a struct that a file can set, each with its comment on one line.
fn fields(source: &str, name: &str) -> Vec<(String, String)> {
    let (_, rest) = source.split_once(&format!("pub struct {name} {{\n")).unwrap();
    let (body, _) = rest.split_once("\n}\n").unwrap();
    let (mut found, mut comment, mut skipped) = (Vec::new(), Vec::new(), false);
    for line in body.lines().map(str::trim) {
        if let Some(text) = line.strip_prefix("///") {
            comment.push(text.trim());
        } else if line == "#[serde(skip)]" {
            skipped = true;
        } else if let Some((field, _)) = line.strip_prefix("pub ").and_then(|line| line.split_once(": ")) {
            let comment = std::mem::take(&mut comment).join(" ");
            if !std::mem::take(&mut skipped) {
                found.push((field.to_owned(), comment));
            }
        }
    }
    found
}
