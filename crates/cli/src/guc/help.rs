//! The output of `-help` and of usage errors.

use std::fmt::Write;

use super::table::{Action, OPTIONS};

pub(super) const SYNTAX: &str = "\
Syntax: globus-url-copy [-help] [-vb] [-dbg] [-r] [-rst] [-p <parallelism>] [-tcp-bs <size>] [-bs <size>]
                        -f <filename> | <sourceURL> <destURL>

Use -help to display full usage.";

/// Returns the text of `-help`, made from the table.
pub(super) fn text() -> String {
    let mut text = String::from(
        "globus-url-copy [options] <sourceURL> <destURL>\n\
         globus-url-copy [options] -f <filename>\n\n\
         The last component of <sourceURL> may have the wildcards * ? and [ ]. URLs of directories end with a slash; all\n\
         files in a source directory are copied.\n\n\
         OPTIONS\n",
    );
    for option in OPTIONS.iter().filter(|option| !option.help.is_empty()) {
        let argument = option.argument.map(|name| format!(" <{name}>")).unwrap_or_default();
        let names: Vec<_> = option.names.iter().map(|name| format!("-{name}{argument}")).collect();
        let help = match option.action {
            Action::NotPossible => format!("{} (not supported)", option.help),
            _ => option.help.to_owned(),
        };
        // Writing to a string does not fail.
        let _ = write!(text, "  {}\n       {help}\n", names.join(" | "));
    }
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn help_lists_each_alias() {
        let text = super::text();
        assert!(text.contains("  -stall-timeout <seconds> | -st <seconds>\n"), "{text}");
        assert!(text.contains("(not supported)"));
    }
}
