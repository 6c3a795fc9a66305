//! Sizes, rates and times as people write and read them: IEC bytes for files, bits for links.
//!
//! [`read`] has one grammar for all programs and configuration files, and [`print`] the formats. A
//! function of `read` returns `None` for text that is not a quantity of its kind; the caller words
//! the error, because it knows which forms it wants to name. A caller that accepts fewer forms
//! looks at [`read::unit`] first.

#![forbid(unsafe_code)]

pub mod print;
pub mod read;
