//! Programs as templates: how to run the server and the client, and which of their options stand
//! for which variable. A template is a TOML file, built in or named by the user. A [`Call`] is a
//! template with the arguments that the user wrote after its name.

use std::collections::BTreeMap;
use std::env;
use std::path::Path;

use serde::Deserialize;

use super::LibraryError;
use crate::scenario::{File, Server};

/// Names and texts of the built-in templates.
pub const PROGRAMS: &[(&str, &str)] = &[
    ("ropewalk", include_str!("../../programs/ropewalk.toml")),
    ("globus-url-copy", include_str!("../../programs/globus-url-copy.toml")),
    ("ropewalk-choice", include_str!("../../programs/ropewalk-choice.toml")),
    ("ropewalk-stacks", include_str!("../../programs/ropewalk-stacks.toml")),
    ("ropewalk-gct", include_str!("../../programs/ropewalk-gct.toml")),
    ("ropewalk-third", include_str!("../../programs/ropewalk-third.toml")),
    ("ropewalk-third-gct", include_str!("../../programs/ropewalk-third-gct.toml")),
    ("lftp", include_str!("../../programs/lftp.toml")),
    ("curl", include_str!("../../programs/curl.toml")),
    ("iperf3", include_str!("../../programs/iperf3.toml")),
];

/// A template. In addition to the placeholders of a scenario, `{args}` stands for the arguments
/// that the user wrote after the program's name, and `{bytes}` for the number of bytes to transfer.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Program {
    /// The name of the program; it is not in the file.
    #[serde(skip)]
    pub name: String,
    /// A short description.
    pub about: String,
    /// Programs that must be installed, with the Debian packages that contain them.
    #[serde(default)]
    pub needs: BTreeMap<String, String>,
    /// Servers, as in a scenario.
    #[serde(default)]
    pub servers: Vec<Server>,
    /// Files of the servers and the client, as in a scenario.
    #[serde(default)]
    pub files: Vec<File>,
    /// The arguments for each variable: `streams`, `files` (in flight), `buffer` (of sockets, in
    /// bytes), `block` (in bytes), or any other.
    #[serde(default)]
    pub options: BTreeMap<String, Vec<String>>,
    /// Environment of the client.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
    /// Transfers one file, `{disk}/source`, from `right` to `left`.
    pub get: Option<Action>,
    /// Transfers one file from `left` to `right`.
    pub put: Option<Action>,
    /// Transfers a directory of files from `right` to `left`.
    pub get_tree: Option<Action>,
    /// Transfers a directory of files from `left` to `right`.
    pub put_tree: Option<Action>,
}

/// One way to run the client.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Action {
    /// The program and its arguments.
    pub run: Vec<String>,
    /// The value of `{args}` if there are no arguments.
    #[serde(default)]
    pub default: Vec<String>,
    /// The command for transfers without storage: `{disk}/source` is a hole, and `{disk}/dev/null`
    /// at the destination stores nothing.
    pub unstored: Option<Vec<String>>,
    /// Options that override the program's options of the same name.
    #[serde(default)]
    pub options: BTreeMap<String, Vec<String>>,
}

/// A program with its arguments.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// The template.
    pub program: Program,
    /// The arguments after the name.
    pub words: Vec<String>,
    /// The text as the user wrote it; it is the name in tables and plots.
    pub label: String,
}

impl Program {
    /// Reads a template.
    ///
    /// # Errors
    /// [`LibraryError::Program`]
    pub fn parse(name: &str, text: &str) -> Result<Self, LibraryError> {
        let program: Self = toml::from_str(text).map_err(|error| LibraryError::Program {
            origin: name.to_owned(),
            message: error.to_string().trim_end().replace('\n', "\n  "),
        })?;
        Ok(Self { name: name.to_owned(), ..program })
    }

    /// Returns the template of a built-in program, or of a file `NAME.toml`.
    ///
    /// # Errors
    /// [`LibraryError::NoProgram`], [`LibraryError::Program`]
    pub fn open(name: &str) -> Result<Self, LibraryError> {
        if let Some((name, text)) = PROGRAMS.iter().find(|(known, _)| *known == name) {
            return Self::parse(name, text);
        }
        let path = Path::new(name);
        if path.extension().is_none_or(|extension| extension != "toml") {
            let known = PROGRAMS.iter().map(|(name, _)| *name).collect();
            return Err(LibraryError::NoProgram { name: name.to_owned(), known });
        }
        let text = std::fs::read_to_string(path)
            .map_err(|error| LibraryError::Program { origin: name.to_owned(), message: error.to_string() })?;
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        Self::parse(&stem, &text)
    }

    /// Checks that the required programs are installed.
    ///
    /// # Errors
    /// [`LibraryError::Missing`]
    pub fn check_installed(&self) -> Result<(), LibraryError> {
        for (needed, package) in &self.needs {
            if !installed(needed) {
                let (program, needed, package) = (self.name.clone(), needed.clone(), package.clone());
                return Err(LibraryError::Missing { program, needed, package });
            }
        }
        Ok(())
    }
}

/// Daemons are often in `sbin`, which is not in every user's PATH.
fn installed(program: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/local/sbin", "/usr/sbin", "/sbin"].map(Into::into);
    env::split_paths(&path).chain(usual).any(|directory| directory.join(program).is_file())
}

impl Call {
    /// Parses a text like `globus-url-copy -p 8`, with the quoting rules of a shell.
    ///
    /// # Errors
    /// The errors of [`Program::open`], and [`LibraryError::Quote`].
    pub fn parse(text: &str) -> Result<Self, LibraryError> {
        let mut words = shlex::split(text).ok_or_else(|| LibraryError::Quote { text: text.to_owned() })?;
        if words.is_empty() {
            words.push(String::new());
        }
        let name = words.remove(0);
        let program = Program::open(&name)?;
        Ok(Self { program, words, label: text.split_whitespace().collect::<Vec<_>>().join(" ") })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn program_of_every_built_in_template_loads() {
        for (name, _) in PROGRAMS {
            let program = Program::open(name).unwrap();
            assert!(program.get.is_some() && program.put.is_some(), "{name}");
        }
    }

    #[test]
    fn call_with_quotes_is_split_into_words() {
        let call = Call::parse("globus-url-copy  -p 8 -cc '4'").unwrap();
        assert_eq!(call.words, ["-p", "8", "-cc", "4"]);
        assert_eq!(call.label, "globus-url-copy -p 8 -cc '4'");
        assert!(matches!(Call::parse("curl 'x"), Err(LibraryError::Quote { .. })));
        for unknown in ["", "rsync", "-p 8"] {
            assert!(matches!(Call::parse(unknown), Err(LibraryError::NoProgram { .. })), "{unknown:?}");
        }
        assert!(matches!(Call::parse("./absent.toml"), Err(LibraryError::Program { .. })));
    }
}
