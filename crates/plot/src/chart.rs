//! Charts and their panels.

use std::fs;
use std::path::Path;

use crate::axis::Axis;
use crate::error::PlotError;
use crate::png::png;
use crate::render;
use crate::series::Series;

/// Panels with a common horizontal axis.
#[derive(Clone, Debug, PartialEq)]
pub struct Chart {
    pub(crate) title: String,
    pub(crate) note: String,
    pub(crate) x: Axis,
    pub(crate) panels: Vec<Panel>,
    pub(crate) events: Vec<(f64, String)>,
    pub(crate) width: u32,
    pub(crate) panel_height: Option<u32>,
}

/// One vertical axis and the series on it.
#[derive(Clone, Debug, PartialEq)]
pub struct Panel {
    pub(crate) y: Axis,
    pub(crate) series: Vec<Series>,
    pub(crate) levels: Vec<(f64, String)>,
}

impl Chart {
    /// A chart without panels yet.
    pub fn new(title: impl Into<String>, x: Axis) -> Self {
        Self {
            title: title.into(),
            note: String::new(),
            x,
            panels: Vec::new(),
            events: Vec::new(),
            width: 880,
            panel_height: None,
        }
    }

    /// A smaller line under the title: where the data comes from.
    #[must_use]
    pub fn note(self, note: impl Into<String>) -> Self {
        Self { note: note.into(), ..self }
    }

    /// Adds a panel below the others.
    #[must_use]
    pub fn panel(mut self, panel: Panel) -> Self {
        self.panels.push(panel);
        self
    }

    /// Marks something that happened at `x`, in every panel.
    #[must_use]
    pub fn event(mut self, x: f64, label: impl Into<String>) -> Self {
        self.events.push((x, label.into()));
        self
    }

    /// Width in pixels (880 unless set; 200 at least).
    #[must_use]
    pub fn width(self, pixels: u32) -> Self {
        Self { width: pixels.clamp(200, 10_000), ..self }
    }

    /// Height of a panel's drawing area in pixels (340 for one, 150 where there are several; 40 at least).
    #[must_use]
    pub fn panel_height(self, pixels: u32) -> Self {
        Self { panel_height: Some(pixels.clamp(40, 10_000)), ..self }
    }

    /// The whole SVG document.
    ///
    /// # Errors
    /// No panels, or a fixed range that is none.
    pub fn to_svg(&self) -> Result<String, PlotError> {
        if self.panels.is_empty() {
            return Err(PlotError::NoPanels { title: self.title.clone() });
        }
        self.x.check()?;
        for panel in &self.panels {
            panel.y.check()?;
        }
        render::svg(self)
    }

    /// The chart as a PNG file, two dots a pixel.
    ///
    /// # Errors
    /// As [`to_svg`](Self::to_svg), and [`PlotError::Draw`] where the machine has no font.
    pub fn to_png(&self) -> Result<Vec<u8>, PlotError> {
        png(&self.to_svg()?).map_err(|reason| PlotError::Draw { title: self.title.clone(), reason })
    }

    /// Writes it to a file: PNG where its name ends in `.png`, else SVG.
    ///
    /// # Errors
    /// As [`to_svg`](Self::to_svg) or [`to_png`](Self::to_png), and [`PlotError::Write`].
    pub fn write(&self, path: impl AsRef<Path>) -> Result<(), PlotError> {
        let path = path.as_ref();
        let bitmap = path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("png"));
        let content = if bitmap { self.to_png()? } else { self.to_svg()?.into_bytes() };
        fs::write(path, content).map_err(|source| PlotError::Write { path: path.to_owned(), source })
    }
}

impl Panel {
    /// A panel without series yet.
    pub fn new(y: Axis) -> Self {
        Self { y, series: Vec::new(), levels: Vec::new() }
    }

    /// Adds a series. It takes the next colour.
    #[must_use]
    pub fn series(mut self, series: Series) -> Self {
        self.series.push(series);
        self
    }

    /// A labelled horizontal line: a capacity, a limit.
    #[must_use]
    pub fn level(mut self, y: f64, label: impl Into<String>) -> Self {
        self.levels.push((y, label.into()));
        self
    }
}
