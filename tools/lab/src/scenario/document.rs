//! Reads a scenario file, changes single values of it, and finds the lines of its fields. A
//! [`Document`] keeps the text and the TOML table. It is interpreted and checked only when
//! [`Document::scenario`] is called, so that several changes can be made first.

use super::{Scenario, Value, check};
use std::{
    fs,
    path::{Path, PathBuf},
};
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

/// The reason why a scenario cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    /// The file cannot be read.
    #[error("{}: {error}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The reason.
        error: std::io::Error,
    },
    /// The text is not TOML, a field does not exist, or a value has the wrong type.
    #[error("{origin}:{line}: {message}")]
    Syntax {
        /// The file, or another name for the source of the text.
        origin: String,
        /// Line number, from 1.
        line: usize,
        /// The error.
        message: String,
    },
    /// The text is well-formed, but a value is not valid.
    #[error("{origin}{}: {field}: {message}", line.map(|line| format!(":{line}")).unwrap_or_default())]
    Meaning {
        /// The file, or another name for the source of the text.
        origin: String,
        /// Line number of the field, from 1. Absent if the value was set by the caller.
        line: Option<usize>,
        /// The field, such as `links[0].between`.
        field: String,
        /// The error, and the expected value.
        message: String,
    },
}

/// A scenario file before its interpretation.
#[derive(Clone, Debug)]
pub struct Document {
    origin: String,
    text: String,
    table: toml::Table,
    changed: bool,
}

/// A step of a path into a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Key(String),
    Index(usize),
}

impl Document {
    /// Reads a file.
    ///
    /// # Errors
    /// [`ScenarioError::Read`], and [`ScenarioError::Syntax`] if the text is not TOML.
    pub fn open(path: &Path) -> Result<Self, ScenarioError> {
        let text =
            fs::read_to_string(path).map_err(|error| ScenarioError::Read { path: path.to_owned(), error })?;
        Self::parse(&text, &path.display().to_string())
    }

    /// Parses the text of a scenario; `origin` is used as the file name in errors.
    ///
    /// # Errors
    /// [`ScenarioError::Syntax`]
    pub fn parse(text: &str, origin: &str) -> Result<Self, ScenarioError> {
        let table = toml::from_str(text).map_err(|error| syntax(&error, text, origin))?;
        Ok(Self { origin: origin.to_owned(), text: text.to_owned(), table, changed: false })
    }

    /// The name of the source.
    pub fn origin(&self) -> &str {
        &self.origin
    }

    /// The text of the document as it was read.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Changes one value. `field` is a path such as `variables.streams`, `links[0].path.both.rate`
    /// or `kernel.congestion`. Missing tables on the path are created. The plain name of a variable
    /// stands for `variables.NAME`.
    ///
    /// # Errors
    /// [`ScenarioError::Meaning`] if the path leads through a value that is not a table, or past
    /// the end of a list.
    pub fn set(&mut self, field: &str, value: &Value) -> Result<(), ScenarioError> {
        let wrong = |message: String| ScenarioError::Meaning {
            origin: self.origin.clone(),
            line: None,
            field: field.to_owned(),
            message,
        };
        let mut steps =
            parse_field(field).ok_or_else(|| wrong("expected for example links[0].path.mtu".into()))?;
        let is_variable =
            |name: &str| self.table.get("variables").and_then(|variables| variables.get(name)).is_some();
        if let [Step::Key(name)] = steps.as_slice()
            && is_variable(name)
        {
            steps.insert(0, Step::Key("variables".into()));
        }
        let mut table = toml::Value::Table(self.table.clone());
        let mut at = &mut table;
        for step in &steps {
            at = match (step, at) {
                (Step::Key(key), toml::Value::Table(table)) => {
                    table.entry(key.clone()).or_insert_with(|| toml::Value::Table(toml::Table::new()))
                }
                (Step::Index(index), toml::Value::Array(array)) => {
                    let length = array.len();
                    array.get_mut(*index).ok_or_else(|| wrong(format!("there are only {length}, from 0")))?
                }
                (Step::Key(key), _) => {
                    return Err(wrong(format!("nothing can be named {key} here: no table")));
                }
                (Step::Index(_), _) => return Err(wrong("no list to count in".into())),
            };
        }
        *at = match value {
            Value::Bool(value) => toml::Value::Boolean(*value),
            Value::Integer(value) => toml::Value::Integer(*value),
            Value::Float(value) => toml::Value::Float(*value),
            Value::Text(value) => toml::Value::String(value.clone()),
        };
        if let toml::Value::Table(table) = table {
            self.table = table;
            self.changed = true;
        }
        Ok(())
    }

    /// Returns the scenario after checking it: names exist, hosts and links form a tree, variables
    /// are known.
    ///
    /// # Errors
    /// [`ScenarioError::Syntax`] if a field does not exist or a value has the wrong type,
    /// [`ScenarioError::Meaning`] if a value is not valid.
    pub fn scenario(&self) -> Result<Scenario, ScenarioError> {
        let scenario: Scenario = if self.changed {
            // The table differs from the text now, so errors name the field but no line.
            toml::Value::Table(self.table.clone()).try_into().map_err(|error: toml::de::Error| {
                ScenarioError::Meaning {
                    origin: self.origin.clone(),
                    line: None,
                    field: "after changes".into(),
                    message: error.message().to_owned(),
                }
            })?
        } else {
            toml::from_str(&self.text).map_err(|error| syntax(&error, &self.text, &self.origin))?
        };
        check::check(&scenario).map_err(|(field, message)| ScenarioError::Meaning {
            origin: self.origin.clone(),
            line: self.line(&field),
            field,
            message,
        })?;
        Ok(scenario)
    }

    /// The line of a field, or of the longest part of its path that exists.
    fn line(&self, field: &str) -> Option<usize> {
        let root = DeTable::parse(&self.text).ok()?;
        let mut offset = None;
        let mut at: Option<&DeValue<'_>> = None;
        for step in parse_field(field)? {
            let table = match at {
                None => Some(root.get_ref()),
                Some(DeValue::Table(table)) => Some(table),
                Some(_) => None,
            };
            let found: Option<&Spanned<DeValue<'_>>> = match (&step, table, at) {
                (Step::Key(key), Some(table), _) => table.iter().find_map(|(name, value)| {
                    (name.get_ref() == key).then(|| {
                        offset = Some(name.span().start);
                        value
                    })
                }),
                (Step::Index(index), _, Some(DeValue::Array(array))) => array.get(*index).inspect(|value| {
                    offset = Some(value.span().start);
                }),
                _ => None,
            };
            let Some(found) = found else { break };
            at = Some(found.get_ref());
        }
        offset.map(|offset| line_at(&self.text, offset))
    }
}

fn syntax(error: &toml::de::Error, text: &str, origin: &str) -> ScenarioError {
    let line = error.span().map_or(1, |span| line_at(text, span.start));
    ScenarioError::Syntax {
        origin: origin.to_owned(),
        line,
        message: error.message().trim().replace('\n', ", "),
    }
}

fn line_at(text: &str, offset: usize) -> usize {
    text.as_bytes().iter().take(offset).filter(|byte| **byte == b'\n').count() + 1
}

/// Parses a path such as `links[0].path.mtu` into steps.
pub(crate) fn parse_field(field: &str) -> Option<Vec<Step>> {
    let mut steps = Vec::new();
    for part in split_quoted(field) {
        let (key, mut indices) = match part.find('[').filter(|_| !part.starts_with('"')) {
            Some(at) => part.split_at(at),
            None => (part.as_str(), ""),
        };
        if key.is_empty() {
            return None;
        }
        steps.push(Step::Key(key.trim_matches('"').to_owned()));
        while !indices.is_empty() {
            let (index, after) = indices.strip_prefix('[')?.split_once(']')?;
            steps.push(Step::Index(index.parse().ok()?));
            indices = after;
        }
    }
    Some(steps)
}

/// Splits at dots outside quotes: `kernel.sysctl."net.ipv4.tcp_sack"` has three parts.
fn split_quoted(field: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut quoted = false;
    for c in field.chars() {
        quoted ^= c == '"';
        if c == '.' && !quoted {
            parts.push(String::new());
        } else if let Some(part) = parts.last_mut() {
            part.push(c);
        }
    }
    parts
}
