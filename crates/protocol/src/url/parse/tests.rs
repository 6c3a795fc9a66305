#![allow(clippy::unwrap_used)]

use super::*;

fn url(text: &str) -> Url {
    Url::parse(text).unwrap()
}

#[test]
fn url_parse_reads_host_port_and_path() {
    let u = url("gsiftp://dtn.example/data/x");
    assert_eq!((u.scheme, u.host.as_str(), u.port), (Scheme::Gsiftp, "dtn.example", 2811));
    assert_eq!((u.user.as_ref(), u.password.as_ref(), u.path.as_slice()), (None, None, &b"/data/x"[..]));
    let u = url("FTP://Host_1.Example:2121");
    assert_eq!((u.scheme, u.host.as_str(), u.port), (Scheme::Ftp, "host_1.example", 2121));
    assert_eq!(u.path, "/");
    assert!(u.is_directory() && u.login_relative().is_empty());
    assert_eq!(url("ftp://h:/x").port, 21);
    let ssh = url("sshftp://ada@h/x");
    assert_eq!((ssh.scheme, ssh.port, ssh.to_string().as_str()), (Scheme::Sshftp, 0, "sshftp://ada@h/x"));
    assert_eq!(url("SSHFTP://h:22/").to_string(), "sshftp://h:22/");
    assert_eq!(url("ftp://127.0.0.1/a;type=i?b#c").path, "/a;type=i?b#c");
}

#[test]
fn url_parse_decodes_escapes() {
    assert_eq!(url("ftp://h/%20%ff%41%2f%25").path, &b"/ \xffA/%"[..]);
    let u = url("ftp://h/%2Fetc/x");
    assert_eq!((u.path.as_slice(), u.login_relative().as_bytes()), (&b"//etc/x"[..], &b"/etc/x"[..]));
    assert_eq!(url("ftp://h/a").login_relative(), "a");
    assert_eq!(url("ftp://h/~/a").path, "/~/a");
    assert_eq!(url("ftp://h/d\u{e9}").path, "/d\u{e9}");
    assert_eq!(Url::parse("ftp://h/a%"), Err(UrlError::BadEscape { at: 9 }));
    assert_eq!(Url::parse("ftp://h/a%4"), Err(UrlError::BadEscape { at: 9 }));
    assert_eq!(Url::parse("ftp://h/a%g1"), Err(UrlError::BadEscape { at: 9 }));
    assert_eq!(Url::parse("ftp://h/ab%00"), Err(UrlError::Nul { at: 10 }));
    assert_eq!(Url::parse("ftp://h/ab\0"), Err(UrlError::Nul { at: 10 }));
    assert_eq!(Url::parse("ftp://h/ab%0d%0aDELE x"), Err(UrlError::LineEnd { at: 7 }));
    assert_eq!(Url::parse("ftp://a%0a@h/"), Err(UrlError::LineEnd { at: 6 }));
}

#[test]
fn url_parse_reads_user_and_password() {
    let u = url("gsiftp://us%40er:p%3Aw%2f@h:99/x");
    assert_eq!(u.user.unwrap(), "us@er");
    assert_eq!((u.password.unwrap().expose(), u.port), (&b"p:w/"[..], 99));
    let u = url("gsiftp://:a:b@c@h/");
    assert_eq!((u.user.unwrap(), u.password.unwrap().expose()), ("".into(), &b"a:b@c"[..]));
    assert_eq!(url("ftp://u@h").password, None);
    assert_eq!(url("ftp://u:@h").password, Some(Password::new("")));
    let debug = format!("{:?}", url("ftp://u:secret@h"));
    assert!(!debug.contains("secret"), "{debug}");
}

#[test]
fn url_parse_reads_ipv6_hosts_and_zones() {
    let u = url("gsiftp://[2001:DB8::0:1]:1/");
    assert_eq!((u.host.as_str(), u.port), ("2001:db8::1", 1));
    assert_eq!(url("gsiftp://[fe80::1%25eth0]/").host, "fe80::1%eth0");
    assert_eq!(url("gsiftp://[fe80::1%eth0]/").host, "fe80::1%eth0");
    assert_eq!(url("gsiftp://u@[::1]").host, "::1");
    for text in ["[1.2.3.4]", "[x]", "[]", "[::1%]", "[::1%e/]"] {
        assert!(Url::parse(&format!("ftp://{text}/")).is_err(), "{text}");
    }
    assert_eq!(Url::parse("ftp://[::1/"), Err(UrlError::OpenBracket));
    assert_eq!(Url::parse("ftp://[::1]x/"), Err(UrlError::BadPort { text: "x".into() }));
}

#[test]
fn url_parse_of_invalid_url_fails() {
    for (text, error) in [
        ("/a/b", UrlError::NoScheme),
        ("a b://c", UrlError::NoScheme),
        ("", UrlError::NoScheme),
        ("gsiftp", UrlError::NoScheme),
        ("http://h/", UrlError::UnknownScheme { scheme: "http".into() }),
        ("file:///x", UrlError::FileNotRemote),
        ("ftp:/h", UrlError::NoAuthority { scheme: Scheme::Ftp }),
        ("ftp:///x", UrlError::NoHost),
        ("ftp://u@/x", UrlError::NoHost),
        ("ftp://:21/x", UrlError::NoHost),
        ("ftp://h:0/", UrlError::BadPort { text: "0".into() }),
        ("ftp://h:65536/", UrlError::BadPort { text: "65536".into() }),
        ("ftp://h:+1/", UrlError::BadPort { text: "+1".into() }),
        ("ftp://h:1:2/", UrlError::BadPort { text: "1:2".into() }),
        ("ftp://h st/", UrlError::BadHost { byte: ' ', at: 7 }),
        ("ftp://u@h%41/", UrlError::BadHost { byte: '%', at: 9 }),
        ("ftp://h\u{e9}/", UrlError::BadHost { byte: '\u{e9}', at: 7 }),
    ] {
        assert_eq!(Url::parse(text), Err(error), "{text}");
    }
}

#[test]
fn target_parse_reads_file_urls() {
    let file = |text| match Target::parse(text) {
        Ok(Target::File(path)) => Ok(path),
        Ok(other) => panic!("{other:?}"),
        Err(error) => Err(error),
    };
    for text in [
        "file:///a%20b",
        "file:/a%20b",
        "file://localhost/a%20b",
        "FILE://LOCALHOST/a b",
        "file://127.0.0.1/a b",
    ] {
        assert_eq!(file(text), Ok("/a b".into()), "{text}");
    }
    assert_eq!(file("file:///a%0ab"), Ok("/a\nb".into()));
    assert_eq!(file("file://other/x"), Err(UrlError::ForeignFile { host: "other".into() }));
    assert_eq!(file("file:x"), Err(UrlError::RelativeFile));
    assert_eq!(file("file://x"), Err(UrlError::RelativeFile));
    assert_eq!(file("file:"), Err(UrlError::RelativeFile));
    assert_eq!(file("file:///%00"), Err(UrlError::Nul { at: 8 }));
    assert!(matches!(Target::parse("gsiftp://h/"), Ok(Target::Remote(_))));
}

#[test]
fn looks_like_url_requires_scheme_and_slash() {
    for (text, is) in [
        ("ftp://h", true),
        ("file:/x", true),
        ("file:x", false),
        ("/tmp/ftp://h", false),
        ("a:b", false),
        ("http://x", true),
    ] {
        assert_eq!(Target::looks_like_url(text), is, "{text}");
    }
}
