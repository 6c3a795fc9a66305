//! The schemas of OGF, and what a real provider and a real requester sent to each other.
//!
//! Messages are validated by xmllint, which shares no code with the program under test: one process
//! for many messages.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::process::{self, run};
use crate::scratch::Scratch;

/// The program that validates.
pub const VALIDATOR: &str = "xmllint";

const LIMIT: Duration = Duration::from_secs(60);
/// The exit status of xmllint if it has judged all documents: all are valid, one is no XML, or one
/// breaks the schema.
const JUDGED: [i32; 4] = [0, 1, 3, 4];

/// A message that breaks a rule of the schemas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Complaint {
    /// The place of the message in the list.
    pub message: usize,
    /// The first rule, as xmllint words it.
    pub text: String,
}

/// Validates messages against the schemas. Returns the first complaint about each that is invalid.
pub fn validate(messages: &[String]) -> Result<Vec<Complaint>> {
    let scratch = Scratch::new()?;
    let mut command = process::command(VALIDATOR);
    command.args(["--nonet", "--noout", "--schema"]).arg(directory("schemas").join("messages.xsd"));
    for (number, text) in messages.iter().enumerate() {
        let file = scratch.join(format!("{number}.xml"));
        fs::write(&file, text)?;
        command.arg(file);
    }
    let outcome = run(&mut command, LIMIT)?;
    let (code, lines) = (outcome.status.code(), outcome.errors());
    ensure!(code.is_some_and(|code| JUDGED.contains(&code)), "{VALIDATOR} failed: {lines}");
    let mut complaints = Vec::new();
    for number in 0..messages.len() {
        let file = scratch.join(format!("{number}.xml")).display().to_string();
        // "FILE validates", or "FILE:LINE: why", and "FILE fails to validate" at the end.
        if lines.lines().any(|line| line == format!("{file} validates")) {
            continue;
        }
        let of_file = lines.lines().find_map(|line| line.strip_prefix(&format!("{file}:")));
        let text = of_file.with_context(|| format!("{VALIDATOR} says nothing about a message: {lines}"))?;
        complaints.push(Complaint { message: number, text: text.to_owned() });
    }
    Ok(complaints)
}

/// The captured messages, each with the name of its file.
pub fn captured() -> Result<Vec<(String, String)>> {
    const END: &str = "</soap:Envelope>";
    let mut messages = Vec::new();
    for file in fs::read_dir(directory("captures"))? {
        let file = file?;
        let name = file.file_name().to_string_lossy().into_owned();
        if !name.ends_with(".txt") {
            continue;
        }
        let text = fs::read_to_string(file.path())?;
        let mut rest = text.as_str();
        while let Some(at) = rest.find("<soap:Envelope") {
            let end = rest[at..].find(END).with_context(|| format!("{name}: a message has no end"))?;
            let (message, after) = rest[at..].split_at(end + END.len());
            messages.push((name.clone(), message.to_owned()));
            rest = after;
        }
    }
    messages.sort();
    Ok(messages)
}

/// A directory of `tests/nsi`.
pub fn directory(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("nsi").join(name)
}
