#![allow(clippy::unwrap_used)]
use std::net::Ipv6Addr;

use proptest::prelude::*;

use super::*;

fn v4(port: u16) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::new(127, 0, 0, 1), port)
}

#[test]
fn classic_address_accepts_only_six_numbers() {
    assert_eq!(parse_classic(b"127,0,0,1,179,129"), Ok(v4(45_953)));
    assert_eq!(Classic(v4(45_953)).to_string(), "127,0,0,1,179,129");
    assert_eq!(parse_classic(b"127,0,0,1,0,0"), Err(HostPortError::PortZero));
    for text in [
        "",
        "1,2,3,4,5",
        "1,2,3,4,5,6,7",
        "256,0,0,1,1,1",
        "1,2,3,4,5,",
        "1, 2,3,4,5,6",
        "a,2,3,4,5,6",
        "1,2,3,4,5,-6",
        "1,2,3,4,5,000006",
        "::1,2,3,4,5,6",
    ] {
        assert_eq!(parse_classic(text.as_bytes()), Err(HostPortError::NotClassic { text: text.into() }));
    }
}

#[test]
fn extended_address_accepts_any_delimiter() {
    let six = SocketAddr::new(Ipv6Addr::LOCALHOST.into(), 6446);
    assert_eq!(parse_extended(b"|2|::1|6446|"), Ok(six));
    assert_eq!(parse_extended(b"!2!::1!6446!"), Ok(six));
    assert_eq!(parse_extended(b"|1|127.0.0.1|21"), Ok(v4(21).into()));
    assert_eq!(Extended(six).to_string(), "|2|::1|6446|");
    assert_eq!(Extended(v4(21).into()).to_string(), "|1|127.0.0.1|21|");
    let unknown = parse_extended(b"|3|1.2.3.4|5|").unwrap_err();
    assert_eq!(unknown, HostPortError::UnknownProtocol { protocol: "3".into() });
    for text in ["|1|::1|5|", "|2|1.2.3.4|5|", "|1|example.org|5|", "|1||5|"] {
        assert!(matches!(parse_extended(text.as_bytes()), Err(HostPortError::WrongFamily { .. })), "{text}");
    }
    for text in
        ["", "|", "|1|1.2.3.4|", "|1|1.2.3.4|65536|", "|1|1.2.3.4|x|", "|1|1.2.3.4|5|6|", "11112311511"]
    {
        assert!(matches!(parse_extended(text.as_bytes()), Err(HostPortError::NotExtended { .. })), "{text}");
    }
    assert_eq!(parse_extended(b"|1|1.2.3.4|0|"), Err(HostPortError::PortZero));
}

#[test]
fn pasv_reply_in_any_form_is_parsed() {
    for text in [
        "Entering Passive Mode (127,0,0,1,179,129)",
        "Entering Passive Mode (127,0,0,1,179,129).",
        "Entering Passive Mode 127,0,0,1,179,129",
        "Entering Passive Mode. 127,0,0,1,179,129.",
        "=127,0,0,1,179,129",
        "Ok, 1 2 3 (127,0,0,1,179,129), go",
    ] {
        assert_eq!(parse_pasv_reply(text.as_bytes()), Ok(v4(45_953)), "{text}");
    }
    for text in ["Entering Passive Mode", "(1,2,3,4,5)", "(1,2,3,4,5,6,7)", "(999,2,3,4,5,6)", ""] {
        assert!(parse_pasv_reply(text.as_bytes()).is_err(), "{text}");
    }
}

#[test]
fn epsv_reply_with_or_without_host_is_parsed() {
    let parse = |text: &str| parse_epsv_reply(text.as_bytes());
    assert_eq!(parse("Entering Extended Passive Mode (|||6446|)"), Ok((None, 6446)));
    assert_eq!(parse("Entering Extended Passive Mode (!!!6446!)."), Ok((None, 6446)));
    let six = Some(Ipv6Addr::LOCALHOST.into());
    assert_eq!(parse("Entering Extended Passive Mode (|2|::1|6446|)"), Ok((six, 6446)));
    assert!(matches!(parse("x (|1|::1|6446|)"), Err(HostPortError::WrongFamily { .. })));
    for text in ["", "|||6446|", ")(", "(|||x|)", "(|||70000|)", "()"] {
        assert!(parse(text).is_err(), "{text}");
    }
    assert_eq!(PortOnly(6446).to_string(), "|||6446|");
}

#[test]
fn address_lists_of_spor_and_spas_are_parsed() {
    let addresses = parse_list(b"127,0,0,1,168,209  |2|::1|5|").unwrap();
    assert_eq!(print_list(&addresses), "127,0,0,1,168,209 |2|::1|5|");
    assert!(matches!(parse_list(b" "), Err(HostPortError::NoAddress { .. })));
    assert!(parse_list(b"127,0,0,1,168,209 x").is_err());
    assert_eq!(parse_list(&b"1,1,1,1,1,1 ".repeat(MAX_ADDRESSES + 1)), Err(HostPortError::TooMany));
    assert_eq!(parse_spas_lines([" 127,0,0,1,168,209", " |2|::1|5|"]), Ok(addresses));
    assert!(parse_spas_lines::<&str>([]).is_err());
}

proptest! {
    #[test]
    fn address_printed_is_parsed_back(four: u32, six: u128, port in 1u16..) {
        let four = SocketAddrV4::new(four.into(), port);
        let six = SocketAddr::new(Ipv6Addr::from(six).into(), port);
        prop_assert_eq!(parse_classic(Classic(four).to_string().as_bytes()), Ok(four));
        prop_assert_eq!(parse_extended(Extended(four.into()).to_string().as_bytes()), Ok(four.into()));
        prop_assert_eq!(parse_extended(Extended(six).to_string().as_bytes()), Ok(six));
        let list = vec![six, four.into(), six];
        prop_assert_eq!(parse_list(print_list(&list).as_bytes()), Ok(list));
    }

    #[test]
    fn address_parsers_on_any_input_do_not_panic(text: Vec<u8>) {
        let _ = parse_any(&text);
        let _ = parse_list(&text);
        let _ = parse_pasv_reply(&text);
        let _ = parse_epsv_reply(&text);
    }
}
