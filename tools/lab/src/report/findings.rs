//! The measured sections of the documents: the papers' sweeps with real programs, and the rates of
//! static settings and of the tuner on every scenario.
//!
//! Each study defines its trials, and makes its section (text and plots) from the records that
//! exist so far.

mod library;
mod live;
mod ns2;
mod paper;

pub use library::{library_section, library_trials};
pub use live::{LiveStudy, live_cases, live_section};
pub use paper::{paper_section, paper_trials};

use ropewalk_plot::Chart;

/// A section of a document.
#[derive(Clone, Debug)]
pub struct Section {
    /// The name of the markers of the section: `<!-- NAME -->` and `<!-- /NAME -->`.
    pub name: &'static str,
    /// Markdown.
    pub text: String,
    /// Plots, with their file names.
    pub charts: Vec<(String, Chart)>,
}

impl Section {
    /// Replaces the text between the section's markers in a document.
    ///
    /// # Errors
    /// A message that names the missing markers.
    pub fn replace_in(&self, document: &str) -> Result<String, String> {
        let (begin, end) = (format!("<!-- {} -->\n", self.name), format!("<!-- /{} -->", self.name));
        let missing = || format!("expected the lines {} and {end}", begin.trim_end());
        let (before, rest) = document.split_once(&begin).ok_or_else(missing)?;
        let (_, after) = rest.split_once(&end).ok_or_else(missing)?;
        Ok(format!("{before}{begin}\n{}\n{end}{after}", self.text.trim()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn section_in_a_document_replaces_the_text_between_markers() {
        let section = Section { name: "x", text: "new\n".into(), charts: vec![] };
        let document = "a\n<!-- x -->\nold\n<!-- /x -->\nb\n";
        let replaced = section.replace_in(document);
        assert_eq!(replaced.as_deref(), Ok("a\n<!-- x -->\n\nnew\n<!-- /x -->\nb\n"));
        assert_eq!(
            replaced.and_then(|text| section.replace_in(&text)).as_deref(),
            Ok("a\n<!-- x -->\n\nnew\n<!-- /x -->\nb\n")
        );
        assert!(section.replace_in("a\n").is_err());
    }
}
