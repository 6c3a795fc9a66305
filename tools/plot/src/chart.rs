//! Charts and their panels.

use std::fs;
use std::path::Path;

use crate::axis::Axis;
use crate::error::PlotError;
use crate::png::png;
use crate::render;
use crate::series::Series;

/// A chart: panels with a common horizontal axis.
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

/// A panel: one vertical axis and the series on it.
#[derive(Clone, Debug, PartialEq)]
pub struct Panel {
    pub(crate) y: Axis,
    pub(crate) series: Vec<Series>,
    pub(crate) levels: Vec<(f64, String)>,
}

impl Chart {
    /// Makes a chart without panels.
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

    /// Sets a smaller line under the title, for example the source of the data.
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

    /// Marks an event at `x` in every panel.
    #[must_use]
    pub fn event(mut self, x: f64, label: impl Into<String>) -> Self {
        self.events.push((x, label.into()));
        self
    }

    /// Sets the width in pixels (default 880, at least 200).
    #[must_use]
    pub fn width(self, pixels: u32) -> Self {
        Self { width: pixels.clamp(200, 10_000), ..self }
    }

    /// Sets the height of a panel's drawing area in pixels (default 340 for one panel, 150 for each
    /// of several; at least 40).
    #[must_use]
    pub fn panel_height(self, pixels: u32) -> Self {
        Self { panel_height: Some(pixels.clamp(40, 10_000)), ..self }
    }

    /// Returns the complete SVG document.
    ///
    /// # Errors
    /// The chart has no panels, or a fixed range is invalid.
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

    /// Returns the chart as a PNG file, with two dots per pixel in each direction.
    ///
    /// # Errors
    /// The errors of [`to_svg`](Self::to_svg), and [`PlotError::Draw`] if the machine has no font.
    pub fn to_png(&self) -> Result<Vec<u8>, PlotError> {
        png(&self.to_svg()?).map_err(|reason| PlotError::Draw { title: self.title.clone(), reason })
    }

    /// Writes the chart to a file: as PNG if the file name ends in `.png`, otherwise as SVG.
    ///
    /// # Errors
    /// The errors of [`to_svg`](Self::to_svg) or [`to_png`](Self::to_png), and
    /// [`PlotError::Write`].
    pub fn write(&self, path: impl AsRef<Path>) -> Result<(), PlotError> {
        let path = path.as_ref();
        let bitmap = path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("png"));
        let content = if bitmap { self.to_png()? } else { self.to_svg()?.into_bytes() };
        fs::write(path, content).map_err(|source| PlotError::Write { path: path.to_owned(), source })
    }
}

impl Panel {
    /// Makes a panel without series.
    pub fn new(y: Axis) -> Self {
        Self { y, series: Vec::new(), levels: Vec::new() }
    }

    /// Adds a series. It gets the next colour.
    #[must_use]
    pub fn series(mut self, series: Series) -> Self {
        self.series.push(series);
        self
    }

    /// Adds a labelled horizontal line, for example a capacity or a limit.
    #[must_use]
    pub fn level(mut self, y: f64, label: impl Into<String>) -> Self {
        self.levels.push((y, label.into()));
        self
    }
}
