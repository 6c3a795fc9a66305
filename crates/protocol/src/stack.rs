//! Driver stacks as text, in the syntax of GCT's XIO: `tcp:sndbuf=1048576;nodelay,gsi`.
//!
//! SITE SETNETSTACK and SITE SETDISKSTACK carry such a text, and users write it in options. The
//! drivers are separated by commas, from the transport upwards. Each has a name and may have
//! options behind a colon. This module knows the syntax only: the host knows which drivers exist,
//! and what their options mean.

use std::fmt;
use std::str::FromStr;

use bstr::{BStr, BString, ByteSlice};

/// The word that stands for the stack that a server uses if a client chooses none.
const DEFAULT: &[u8] = b"default";

/// The drivers of a stack, from the transport upwards. There is at least one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StackSpec {
    drivers: Vec<DriverSpec>,
}

/// A driver of a stack with its options.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DriverSpec {
    /// In lower case.
    name: String,
    options: Vec<DriverOption>,
}

/// An option of a driver, as it was written.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DriverOption {
    text: BString,
}

/// The text is no driver stack.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StackSyntaxError {
    #[error("a driver of the stack has no name")]
    NoName,
    #[error("{0} is no name of a driver")]
    BadName(String),
}

impl StackSpec {
    /// Parses a stack. `None` is the word `default`.
    ///
    /// # Errors
    /// The name of a driver is missing, has other characters than letters, digits, `_` and `-`, or
    /// is `default`.
    pub fn parse(text: &[u8]) -> Result<Option<Self>, StackSyntaxError> {
        if text.eq_ignore_ascii_case(DEFAULT) {
            return Ok(None);
        }
        let drivers = text.split_str(",").map(DriverSpec::parse).collect::<Result<_, _>>()?;
        Ok(Some(Self { drivers }))
    }

    /// The drivers, from the transport upwards.
    pub fn drivers(&self) -> &[DriverSpec] {
        &self.drivers
    }

    pub fn has(&self, name: &str) -> bool {
        self.drivers.iter().any(|driver| driver.name == name)
    }

    /// The stack without a driver; `None`: no other is in it.
    #[must_use]
    pub fn without(mut self, name: &str) -> Option<Self> {
        self.drivers.retain(|driver| driver.name != name);
        (!self.drivers.is_empty()).then_some(self)
    }

    /// Inserts a driver without options above the first one. The first is the transport in all
    /// stacks that GCT's programs accept.
    pub fn insert_above_first(&mut self, name: &str) {
        self.drivers.insert(1, DriverSpec { name: name.to_ascii_lowercase(), options: Vec::new() });
    }
}

impl DriverSpec {
    fn parse(text: &[u8]) -> Result<Self, StackSyntaxError> {
        let (name, options) = text.split_once_str(":").unwrap_or((text, b""));
        if name.is_empty() {
            return Err(StackSyntaxError::NoName);
        }
        let valid = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-');
        let printed = String::from_utf8_lossy(name).to_ascii_lowercase();
        // The word alone is no driver: it would be read again as the default stack.
        if !name.iter().all(valid) || name.eq_ignore_ascii_case(DEFAULT) {
            return Err(StackSyntaxError::BadName(printed));
        }
        let options = options.split_str(";").filter(|option| !option.is_empty());
        Ok(Self { name: printed, options: options.map(|text| DriverOption { text: text.into() }).collect() })
    }

    /// The name, in lower case.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn options(&self) -> &[DriverOption] {
        &self.options
    }
}

impl DriverOption {
    /// The key, in lower case.
    pub fn key(&self) -> String {
        String::from_utf8_lossy(self.parts().0).to_ascii_lowercase()
    }

    /// The value; empty if there is none.
    pub fn value(&self) -> &BStr {
        self.parts().1.as_bstr()
    }

    fn parts(&self) -> (&[u8], &[u8]) {
        self.text.split_once_str("=").unwrap_or((&self.text, b""))
    }
}

impl fmt::Display for DriverOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text.fmt(f)
    }
}

impl fmt::Display for StackSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.to_bytes()))
    }
}

impl StackSpec {
    /// The text of the stack.
    pub fn to_bytes(&self) -> BString {
        let options = |driver: &DriverSpec| bstr::join(";", driver.options.iter().map(|o| &o.text));
        let driver = |driver: &DriverSpec| match driver.options.is_empty() {
            true => driver.name.clone().into_bytes(),
            false => [driver.name.as_bytes(), b":", &options(driver)].concat(),
        };
        bstr::join(",", self.drivers.iter().map(driver)).into()
    }
}

/// As [`StackSpec::parse`], but `default` is no stack.
impl FromStr for StackSpec {
    type Err = StackSyntaxError;

    fn from_str(text: &str) -> Result<Self, StackSyntaxError> {
        let no_stack = || StackSyntaxError::BadName(text.to_ascii_lowercase());
        Self::parse(text.as_bytes())?.ok_or_else(no_stack)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn spec(text: &str) -> StackSpec {
        text.parse().unwrap()
    }

    #[test]
    fn stack_is_parsed_as_gct_writes_it() {
        let stack = spec("TCP:SndBuf=65536;nodelay,gsi,rate:rate=3M;period=100000");
        let names: Vec<&str> = stack.drivers().iter().map(DriverSpec::name).collect();
        assert_eq!(names, ["tcp", "gsi", "rate"]);
        let [buffer, delay] = stack.drivers()[0].options() else { panic!("{stack}") };
        assert_eq!((buffer.key(), buffer.value()), ("sndbuf".to_owned(), "65536".into()));
        assert_eq!((delay.key(), delay.value()), ("nodelay".to_owned(), "".into()));
        assert!(stack.has("gsi") && !stack.has("udt"));
    }

    #[test]
    fn list_value_keeps_its_delimiters() {
        let popen = StackSpec::parse(b"popen:argv=#/bin/tar#xf#-;env=#A=b:c\xff").unwrap().unwrap();
        let options = popen.drivers()[0].options();
        assert_eq!((options[0].key(), options[0].value()), ("argv".to_owned(), "#/bin/tar#xf#-".into()));
        assert_eq!(options[1].value(), b"#A=b:c\xff".as_bstr());
    }

    #[test]
    fn default_is_no_stack() {
        assert_eq!(StackSpec::parse(b"Default"), Ok(None));
        assert!("default".parse::<StackSpec>().is_err());
        // Its printed form would be the default stack.
        for text in ["default:", "default:a=b", "tcp,default"] {
            assert!(matches!(StackSpec::parse(text.as_bytes()), Err(StackSyntaxError::BadName(_))), "{text}");
        }
    }

    #[test]
    fn printed_stack_parses_to_the_same_stack() {
        for text in ["tcp", "udt,gsi", "tcp:sndbuf=1;keepalive,gsi:auth=self", "popen:argv=#cat#/x"] {
            assert_eq!(spec(text).to_string(), text);
        }
        assert_eq!(spec("TCP:;nodelay;;,Gsi:").to_string(), "tcp:nodelay,gsi");
    }

    #[test]
    fn stack_without_a_name_is_refused() {
        for text in ["", ",", "tcp,", ":sndbuf=1"] {
            assert_eq!(text.parse::<StackSpec>(), Err(StackSyntaxError::NoName), "{text}");
        }
        assert_eq!("t p".parse::<StackSpec>(), Err(StackSyntaxError::BadName("t p".to_owned())));
    }

    #[test]
    fn inserted_driver_is_above_the_transport() {
        let mut stack = spec("udt:mss=1400,rate");
        stack.insert_above_first("gsi");
        assert_eq!(stack.to_string(), "udt:mss=1400,gsi,rate");
    }
}
