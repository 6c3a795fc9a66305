//! Records which program measured each part, and when: figures of different builds cannot be
//! compared.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::time::SystemTime;

use anyhow::Context;
use openssl::asn1::Asn1Time;
use openssl::hash::{Hasher, MessageDigest};
use ropewalk_lab::report::findings::Section;
use serde::{Deserialize, Serialize};

use super::Results;

/// In the directory of results: one line for each part; the last line of a part is valid.
const FILE: &str = "builds.jsonl";

#[derive(Debug, Deserialize, Serialize)]
struct Note {
    part: String,
    /// SHA-256 of the program, hexadecimal.
    program: String,
    /// Time of completion, in seconds since 1970.
    done: i64,
}

/// SHA-256 of this program.
pub(super) fn program() -> anyhow::Result<String> {
    let mut hasher = Hasher::new(MessageDigest::sha256())?;
    let mut file = File::open("/proc/self/exe").context("cannot read this program")?;
    io::copy(&mut file, &mut hasher).context("cannot read this program")?;
    Ok(hasher.finish()?.iter().map(|byte| format!("{byte:02x}")).collect())
}

pub(super) fn note(directory: &Path, part: &str, program: &str) -> anyhow::Result<()> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let note = Note { part: part.to_owned(), program: program.to_owned(), done: now.cast_signed() };
    let path = directory.join(FILE);
    let wrong = || format!("cannot write {}", path.display());
    let mut file = OpenOptions::new().append(true).create(true).open(&path).with_context(wrong)?;
    writeln!(file, "{}", serde_json::to_string(&note)?).with_context(wrong)
}

/// Reports whether one program measured all parts, and when.
pub(super) fn section(results: &Results<'_>) -> anyhow::Result<Option<Section>> {
    let Some(bytes) = results.bytes(FILE)? else { return Ok(None) };
    let text = String::from_utf8(bytes).with_context(|| format!("{FILE} is not text"))?;
    let all = text.lines().map(serde_json::from_str::<Note>).collect::<Result<Vec<_>, _>>();
    let all = all.with_context(|| format!("{FILE} is not as expected"))?;
    // A part that was measured again has several lines.
    let is_last = |at: usize, note: &Note| all.iter().skip(at + 1).all(|other| other.part != note.part);
    let notes: Vec<&Note> =
        all.iter().enumerate().filter(|(at, note)| is_last(*at, note)).map(|(_, note)| note).collect();
    let (Some(first), Some(last)) =
        (notes.iter().map(|note| note.done).min(), notes.iter().map(|note| note.done).max())
    else {
        return Ok(None);
    };
    let programs: BTreeSet<&str> = notes.iter().map(|note| note.program.as_str()).collect();
    let short = |program: &str| format!("`{}`", program.chars().take(12).collect::<String>());
    let by = match programs.first() {
        Some(program) if programs.len() == 1 => {
            format!("one program (ropewalk {}, SHA-256 {}...)", env!("CARGO_PKG_VERSION"), short(program))
        }
        _ => {
            let each = notes.iter().map(|note| format!("{} {}", note.part, short(&note.program)));
            format!("{} programs (SHA-256: {})", programs.len(), each.collect::<Vec<_>>().join(", "))
        }
    };
    let text = format!(
        "{} parts, measured by {by}; the first was done at {}, the last at {}.\n",
        notes.len(),
        &*Asn1Time::from_unix(first)?,
        &*Asn1Time::from_unix(last)?
    );
    Ok(Some(Section { name: "case-build", text, charts: vec![] }))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs;

    use super::*;

    fn text(lines: &str) -> String {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join(FILE), lines).unwrap();
        section(&Results { directory: directory.path() }).unwrap().unwrap().text
    }

    #[test]
    fn section_names_one_program_or_several() {
        let line = |part: &str, program: &str, done: i64| {
            format!("{{\"part\":\"{part}\",\"program\":\"{program}\",\"done\":{done}}}\n")
        };
        let several = line("a", "1111111111111111", 0) + &line("b", "22", 60);
        assert!(
            text(&several).contains("2 programs (SHA-256: a `111111111111`, b `22`)"),
            "{}",
            text(&several)
        );
        // Measured again.
        let one = several + &line("a", "22", 120);
        assert!(text(&one).starts_with("2 parts, measured by one program"), "{}", text(&one));
        assert!(text(&one).contains("Jan  1 00:01:00 1970 GMT"), "{}", text(&one));
    }

    #[test]
    fn notes_are_read_back() {
        let directory = tempfile::tempdir().unwrap();
        let results = Results { directory: directory.path() };
        assert!(section(&results).unwrap().is_none());
        note(directory.path(), "disks", &program().unwrap()).unwrap();
        assert!(section(&results).unwrap().unwrap().text.contains("1 parts, measured by one program"));
        fs::write(directory.path().join(FILE), "nonsense\n").unwrap();
        assert!(section(&results).is_err());
    }
}
