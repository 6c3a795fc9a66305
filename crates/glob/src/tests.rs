#![allow(clippy::unwrap_used)]
use proptest::prelude::*;

use super::*;

fn shell(pattern: &str, name: &str) -> bool {
    Pattern::shell(pattern.as_bytes()).matches(name.as_bytes())
}

fn path(pattern: &str, name: &str) -> bool {
    Pattern::path(pattern.as_bytes()).unwrap().matches(name.as_bytes())
}

#[test]
fn both_kinds_of_patterns_match_wildcards() {
    let yes = [
        ("", ""),
        ("*", ""),
        ("*", "abc"),
        ("a*c", "abbc"),
        ("a*b*c", "axbxxbxc"),
        ("a**c", "abbc"),
        ("?b", "ab"),
        ("[a-c]x", "bx"),
        ("[!a-c]x", "dx"),
        ("[^a-c]x", "dx"),
        ("[]]", "]"),
        ("\\*", "*"),
        ("*.dat", "x.dat"),
        ("[a-]", "-"),
        ("[-a]", "-"),
        ("abc", "abc"),
    ];
    for (pattern, name) in yes {
        assert!(shell(pattern, name) && path(pattern, name), "{pattern} {name}");
    }
    let no = [
        ("", "a"),
        ("a", ""),
        ("?", ""),
        ("a*c", "ab"),
        ("[a-c]", "d"),
        ("[!a]", "a"),
        ("\\*", "x"),
        ("*a", "ab"),
        ("abc", "ab"),
        ("ab", "abc"),
        ("a*", "a/b"),
        ("a?b", "a/b"),
        ("a[!x]b", "a/b"),
    ];
    for (pattern, name) in no {
        assert!(!shell(pattern, name) && !path(pattern, name), "{pattern} {name}");
    }
}

#[test]
fn shell_pattern_that_is_malformed_matches_itself() {
    for text in ["[a", "a\\", "{a,b}", "{", "}", "[!"] {
        assert!(shell(text, text), "{text}");
    }
    assert!(!shell("[c-a]", "b"));
}

#[test]
fn path_pattern_with_alternatives_matches_each() {
    for name in ["ax", "abcx", "a/dx", "ay"] {
        assert!(path("{a,a{bc,/?}}{x,y}", name), "{name}");
    }
    for name in ["abc", "a", "x", "a/x", "a,x"] {
        assert!(!path("{a,a{bc,/?}}{x,y}", name), "{name}");
    }
    assert!(path("a{,.txt}", "a.txt") && !path("a{,.txt}", "a"));
    assert!(path("a{}", "a") && path("a,b", "a,b"));
}

#[test]
fn path_pattern_with_two_stars_crosses_directories() {
    let yes = [
        ("**", "a/b"),
        ("**/x", "x"),
        ("**/x", "a/b/x"),
        ("a/**", "a/b/c"),
        ("a/**/b", "a/b"),
        ("a/**/b", "a/x/y/b"),
        ("a/**/**/b", "a/b"),
        ("{**/x,y}", "a/x"),
        ("{y,a/**}", "a/b/c"),
    ];
    for (pattern, name) in yes {
        assert!(path(pattern, name), "{pattern} {name}");
    }
    for (pattern, name) in
        [("a/**", "a"), ("a/**/b", "a/xb"), ("**/x", "a/bx"), ("a**b", "a/b"), ("**b", "a/b"), ("a**", "a/b")]
    {
        assert!(!path(pattern, name), "{pattern} {name}");
    }
}

#[test]
fn path_pattern_that_is_malformed_is_refused() {
    for (pattern, problem) in [
        ("[a", "unclosed character class; missing ']'"),
        ("[z-a]", "invalid range; 'z' > 'a'"),
        ("{a,b", "unclosed alternate group; missing '}' (maybe escape '{' with '[{]'?)"),
        ("a}", "unopened alternate group; missing '{' (maybe escape '}' with '[}]'?)"),
        ("a\\", "dangling '\\'"),
    ] {
        let error = Pattern::path(pattern.as_bytes()).unwrap_err();
        assert_eq!(error.to_string(), format!("error parsing glob '{pattern}': {problem}"));
    }
}

#[test]
fn bytes_that_are_no_characters_match_themselves_and_wildcards() {
    let path = |pattern: &[u8], name: &[u8]| Pattern::path(pattern).unwrap().matches(name);
    assert!(path(b"\xffa*", b"\xffab") && path(b"\xff*\xfe", b"\xffa\xfe") && path(b"??", b"\xff\xfe"));
    assert!(!path(b"\xff*", b"\xfea") && !path(b"\xff*", "\u{fffd}a".as_bytes()));
}

#[test]
fn long_pattern_is_matched_in_little_memory_and_time() {
    let name = vec![b'a'; 1000];
    assert!(!Pattern::shell(&b"*a".repeat(100)).matches(&[name.as_slice(), b"b"].concat()));
    let nested = ["{".repeat(10_000), "a".into(), "}".repeat(10_000)].concat();
    assert!(path(&nested, "a"));
    assert!(path(&"*".repeat(100_000), "a"));
    assert!(path(&"{a,b}".repeat(100), &"ab".repeat(50)));
}

proptest! {
    #[test]
    fn any_bytes_compile_and_match_without_panic(pattern: Vec<u8>, name: Vec<u8>) {
        Pattern::shell(&pattern).matches(&name);
        if let Ok(pattern) = Pattern::path(&pattern) {
            pattern.matches(&name);
        }
    }

    #[test]
    fn name_between_stars_matches(name in "[a-z]{0,12}", before in "[a-z]{0,6}", after in "[a-z]{0,6}") {
        let (pattern, whole) = (format!("*{name}*"), format!("{before}{name}{after}"));
        prop_assert!(shell(&pattern, &whole));
    }
}
