use std::path::PathBuf;

use clap::builder::{PathBufValueParser, TypedValueParser};

/// The name of a file for a picture, all of which are SVG: who asks for another kind by its ending would get one that nothing opens.
pub(crate) fn svg() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(|path| match path.extension() {
        Some(ending) if !ending.eq_ignore_ascii_case("svg") => {
            Err("pictures are SVG: expected a name that ends in .svg")
        }
        _ => Ok(path),
    })
}
