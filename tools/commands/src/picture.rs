use std::path::PathBuf;

use clap::builder::{PathBufValueParser, TypedValueParser};

/// Parses the file name of a picture. An unsupported suffix is refused, because no program could
/// open the file.
pub(crate) fn picture() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(|path| match path.extension() {
        Some(ending) if ["svg", "png"].iter().all(|known| !ending.eq_ignore_ascii_case(known)) => {
            Err("pictures are SVG or PNG: expected a name that ends in .svg or .png")
        }
        _ => Ok(path),
    })
}
