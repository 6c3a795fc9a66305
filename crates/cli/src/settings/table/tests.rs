#![allow(clippy::unwrap_used)]
use super::*;

#[test]
fn shown_values_are_parsed_back() {
    for setting in SETTINGS {
        let shown = (setting.show)(&Settings::default());
        let mut settings = Settings::default();
        (setting.apply)(&mut settings, &shown).unwrap_or_else(|error| panic!("{}: {error}", setting.key));
        assert_eq!((setting.show)(&settings), shown, "{}", setting.key);
    }
}

#[test]
fn valid_values_are_applied() {
    for (key, text, shown) in [
        ("streams", "4", "4"),
        ("block-size", "256K", "256K"),
        ("tcp-buffer", "8MiB", "8M"),
        ("socket-memory", "64MiB", "64M"),
        ("sync", "true", "time"),
        ("preserve", "links,times", "times,links"),
        ("preserve", "all", "times,modes,links"),
        ("stall-limit", "10KiB/s/1m", "10K/60s"),
        ("stall-limit", "1M/500s", "1M/500s"),
        ("retry-pause", "250ms", "250ms"),
        ("retry-limit", "2m", "120s"),
        ("retry-limit", "off", "off"),
        ("data-ports", "50000,50010", "50000-50010"),
        ("share", "7", "7%"),
        ("share", "12.5 %", "12.5%"),
        ("fsync", "true", "end"),
        ("direct-io", "never", "never"),
    ] {
        let setting = Setting::find(key).unwrap();
        let mut settings = Settings::default();
        (setting.apply)(&mut settings, text).unwrap();
        assert_eq!((setting.show)(&settings), shown, "{key} = {text}");
    }
}

#[test]
fn share_of_a_polite_transfer_is_parsed_back() {
    let (polite, share) = (Setting::find("polite").unwrap(), Setting::find("share").unwrap());
    let mut settings = Settings::default();
    (polite.apply)(&mut settings, "true").unwrap();
    assert_eq!((polite.show)(&settings), "true");
    assert_eq!((share.show)(&settings), (share.show)(&Settings::default()));
    assert!(share.check(&(share.show)(&settings)).is_ok());
}

#[test]
fn invalid_values_are_reported() {
    for (key, text) in [
        ("streams", "0"),
        ("streams", "many"),
        ("streams", "1025"),
        ("tcp-buffer", "0"),
        ("tcp-buffer", "4GiB"),
        ("block-size", "1"),
        ("buffer-memory", "1K"),
        ("socket-memory", "4K"),
        ("socket-memory", "some"),
        ("mode", "blocks"),
        ("sync", "always"),
        ("preserve", "owner"),
        ("checksum", "rot13"),
        ("stall-limit", "60s"),
        ("stall-limit", "1K/10ms"),
        ("data-ports", "0-10"),
        ("data-ports", "20-10"),
        ("retries", "-1"),
        ("resume", "perhaps"),
        ("user", "a\r\nDELE x"),
    ] {
        let error = Setting::find(key).unwrap().check(text);
        assert!(error.is_err(), "{key} = {text}");
    }
}

#[test]
fn keys_and_short_flags_are_unique() {
    for (index, setting) in SETTINGS.iter().enumerate() {
        for other in &SETTINGS[index + 1..] {
            assert_ne!(setting.key, other.key);
            assert!(setting.short.is_none() || setting.short != other.short);
        }
    }
}
