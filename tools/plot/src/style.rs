//! Colours and sizes.

use plotters::style::RGBColor;

/// The palette of Okabe and Ito, without its yellow, which has too little contrast on white.
const PALETTE: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(170, 120, 0),
    RGBColor(0, 0, 0),
];

pub(crate) const TEXT: RGBColor = RGBColor(40, 40, 40);
pub(crate) const FAINT: RGBColor = RGBColor(110, 110, 110);
pub(crate) const GRID: RGBColor = RGBColor(225, 225, 225);

/// Fine units per pixel: the drawing library has integer coordinates, and with this factor curves
/// are smooth.
pub(crate) const FINE: i32 = 8;

pub(crate) fn colour(number: usize) -> RGBColor {
    PALETTE[number % PALETTE.len()]
}

/// Whether the series uses the palette for the second time, so that it is dashed to distinguish it.
pub(crate) fn dashed(number: usize) -> bool {
    number / PALETTE.len() % 2 == 1
}

/// Estimates the width of `text` in pixels at a font size of `size` pixels. An estimate is enough:
/// fonts are not available here.
pub(crate) fn text_width(text: &str, size: i32) -> i32 {
    let units: f64 = text
        .chars()
        .map(|c| match c {
            'i' | 'j' | 'l' | '.' | ',' | ':' | '\'' | '|' | 'I' | 't' | 'f' | ' ' => 0.32,
            'm' | 'w' | 'M' | 'W' | '%' => 0.9,
            c if c.is_ascii_uppercase() => 0.7,
            c if c.is_ascii() => 0.57,
            _ => 0.8,
        })
        .sum();
    (units * f64::from(size)).ceil() as i32
}

/// Replaces the control characters, which XML does not allow even in escaped form.
pub(crate) fn printable(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') { '\u{fffd}' } else { c })
        .collect()
}
