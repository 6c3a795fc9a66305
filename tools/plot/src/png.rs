//! Converts the SVG document of a chart into a bitmap, for programs that cannot show SVG: slides,
//! word processors, old browsers.

use std::sync::{Arc, OnceLock};

use resvg::tiny_skia::{Pixmap, Transform};
use resvg::usvg::fontdb::{Database, Family};
use resvg::usvg::{Options, Tree};

/// Dots per pixel of the document: enough for high-resolution screens and for print.
const DOTS: f32 = 2.0;
/// Font families for text, in the order of preference. If none is installed, any font is used.
const FONTS: [&str; 5] = ["DejaVu Sans", "Liberation Sans", "Noto Sans", "Helvetica", "Arial"];

/// Returns the document as a PNG file.
///
/// # Errors
/// The machine has no fonts, so that the chart would have no text; or there is not enough memory
/// for the bitmap.
pub(crate) fn png(svg: &str) -> Result<Vec<u8>, String> {
    let fonts = fonts();
    if fonts.is_empty() {
        return Err(
            "there is no font here to write its texts with (Debian has fonts-dejavu-core): take SVG".into()
        );
    }
    let options = Options { fontdb: fonts.clone(), ..Options::default() };
    let tree = Tree::from_str(svg, &options).map_err(|error| error.to_string())?;
    let size = tree.size().to_int_size().scale_by(DOTS).ok_or("it is too large")?;
    let mut picture = Pixmap::new(size.width(), size.height()).ok_or("it is too large")?;
    resvg::render(&tree, Transform::from_scale(DOTS, DOTS), &mut picture.as_mut());
    picture.encode_png().map_err(|error| error.to_string())
}

/// The fonts of this machine, which are loaded once.
fn fonts() -> &'static Arc<Database> {
    static FOUND: OnceLock<Arc<Database>> = OnceLock::new();
    FOUND.get_or_init(|| {
        let mut fonts = Database::new();
        fonts.load_system_fonts();
        let has =
            |name: &&str| fonts.faces().any(|face| face.families.iter().any(|(family, _)| family == *name));
        let any = || fonts.faces().next().and_then(|face| Some(face.families.first()?.0.clone()));
        if let Some(name) = FONTS.iter().find(|name| has(name)).map(ToString::to_string).or_else(any) {
            fonts.set_sans_serif_family(name);
        }
        debug_assert!(fonts.is_empty() || !fonts.family_name(&Family::SansSerif).is_empty());
        Arc::new(fonts)
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn png_contains_drawn_shapes() {
        let draw = |inside: &str| {
            let svg = format!(
                "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"60\" height=\"30\" viewBox=\"0 0 600 300\">\
                 <rect width=\"600\" height=\"300\" fill=\"#FFFFFF\"/>{inside}</svg>"
            );
            png(&svg).map(|bytes| Pixmap::decode_png(&bytes).unwrap())
        };
        if fonts().is_empty() {
            assert!(draw("").unwrap_err().contains("no font"));
            return;
        }
        let dark = |picture: &Pixmap| picture.pixels().iter().filter(|p| p.red() < 128).count();
        let blank = draw("").unwrap();
        assert_eq!((blank.width(), blank.height(), dark(&blank)), (120, 60, 0));
        assert_eq!(dark(&draw("<rect width=\"300\" height=\"300\"/>").unwrap()), 60 * 60);
        let text = "<text x=\"100\" y=\"200\" font-family=\"sans-serif\" font-size=\"200\">abc</text>";
        assert!(dark(&draw(text).unwrap()) > 50);
        assert!(png("<svg").is_err());
    }
}
