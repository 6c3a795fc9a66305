use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use ropewalk_models::eval::Evaluator;

use crate::exit::Exit;

/// Answer each line {"id":…,"group":…,"in":{…}} with {"id":…,"out":{…}}, or with
/// {"id":…,"error":"…"}; then the exit code is 1.
#[derive(Debug, Args)]
pub(super) struct Eval {
    /// Files of lines; without one, or for -, standard input
    files: Vec<PathBuf>,
}

impl Eval {
    pub(super) fn run(self) -> anyhow::Result<Exit> {
        let mut evaluator = Evaluator::default();
        let mut exit = Exit::Done;
        let files = if self.files.is_empty() { vec![PathBuf::from("-")] } else { self.files };
        for path in files {
            let input: Box<dyn BufRead> = if path.as_os_str() == "-" {
                Box::new(io::stdin().lock())
            } else {
                let file = File::open(&path).with_context(|| format!("cannot read {}", path.display()))?;
                Box::new(BufReader::new(file))
            };
            evaluator.begin();
            for line in input.split(b'\n') {
                let line = line.with_context(|| format!("cannot read {}", path.display()))?;
                // A line that is not UTF-8 gets an error, like other invalid lines.
                let (line, broken) = match String::from_utf8(line) {
                    Ok(line) => (line, false),
                    Err(error) => (String::from_utf8_lossy(error.as_bytes()).into_owned(), true),
                };
                if line.trim().is_empty() {
                    evaluator.skip();
                    continue;
                }
                let (answer, error) = if broken { evaluator.broken(&line) } else { evaluator.line(&line) };
                if error.is_some() {
                    exit = Exit::Failed;
                }
                // Each answer is written at once: the caller may wait for it.
                let mut out = io::stdout().lock();
                writeln!(out, "{answer}")?;
                out.flush()?;
            }
        }
        Ok(exit)
    }
}
