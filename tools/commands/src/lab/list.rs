use std::io::{self, Write};

use clap::Args;
use ropewalk_lab::library::{PROGRAMS, Program, all};
use ropewalk_lab::run::labs;
use serde::Serialize;

use crate::exit::{Exit, usage};
use crate::output::json_line;

#[derive(Debug, Args)]
pub(crate) struct List {
    /// One JSON object on a line
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Line {
    kind: &'static str,
    name: String,
    about: String,
}

impl List {
    pub(crate) fn run(self) -> anyhow::Result<Exit> {
        let mut lines = Vec::new();
        for entry in all() {
            let about = entry.document()?.scenario()?.title;
            lines.push(Line { kind: "scenario", name: entry.name.to_owned(), about });
        }
        for (name, text) in PROGRAMS {
            let program = Program::parse(name, text)?;
            let missing = program.check_installed().err().map(|error| format!(" ({error})"));
            let about = format!("{}{}", program.about, missing.unwrap_or_default());
            lines.push(Line { kind: "program", name: (*name).to_owned(), about });
        }
        for lab in labs() {
            let hosts: Vec<&str> = lab.hosts.keys().map(String::as_str).collect();
            let about = format!("{}; hosts {}; process {}", lab.scenario, hosts.join(", "), lab.process);
            lines.push(Line { kind: "running lab", name: lab.name, about });
        }
        let mut out = io::stdout().lock();
        if self.json {
            lines.iter().try_for_each(|line| json_line(&mut out, line))?;
            return Ok(Exit::Done);
        }
        for (kind, title) in
            [("scenario", "Scenarios"), ("program", "Programs"), ("running lab", "Running labs")]
        {
            let own: Vec<&Line> = lines.iter().filter(|line| line.kind == kind).collect();
            let width = own.iter().map(|line| line.name.len()).max().unwrap_or(0);
            if !own.is_empty() {
                writeln!(out, "{title}")?;
            }
            for line in own {
                writeln!(out, "  {:<width$}  {}", line.name, line.about)?;
            }
        }
        Ok(Exit::Done)
    }
}

#[derive(Debug, Args)]
pub(crate) struct Show {
    /// Its name
    name: String,
}

impl Show {
    pub(crate) fn run(self) -> anyhow::Result<Exit> {
        let scenario = all().find(|entry| entry.name == self.name).map(|entry| entry.text);
        let program = PROGRAMS.iter().find(|(name, _)| *name == self.name).map(|(_, text)| *text);
        let Some(text) = scenario.or(program) else {
            return Err(usage(format!(
                "there is no scenario or program {:?}: see `ropewalk lab list`",
                self.name
            )));
        };
        io::stdout().lock().write_all(text.as_bytes())?;
        Ok(Exit::Done)
    }
}
