//! What documents say of the tests.
#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::fs;
use std::path::Path;

/// Each row of the table of bad input in docs/security.md names tests, and they are there.
#[test]
fn tests_that_the_table_of_bad_input_names() {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let text = fs::read_to_string(root.join("docs/security.md")).unwrap();
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
                assert!(is_test, "{file} has no test {name}, which docs/security.md names");
                named += 1;
            }
        }
    }
    assert!(rows > 60 && named > rows, "{rows} rows name {named} tests");
}
