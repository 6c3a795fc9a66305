//! What is drawn in a panel.

/// One value, with its error bar where `low` and `high` differ from it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Horizontal.
    pub x: f64,
    /// Vertical.
    pub y: f64,
    /// Lower end of the error bar.
    pub low: f64,
    /// Upper end of the error bar.
    pub high: f64,
}

impl From<(f64, f64)> for Point {
    fn from((x, y): (f64, f64)) -> Self {
        Self { x, y, low: y, high: y }
    }
}

/// How a series looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// A line through the points, in the order given.
    Line,
    /// A line that keeps its height until the next point, as a setting does.
    Steps,
    /// Marks only.
    Points,
    /// Marks joined by a thin line.
    PointsAndLine,
}

/// One named row of points.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    pub(crate) name: String,
    pub(crate) points: Vec<Point>,
    pub(crate) shape: Shape,
    pub(crate) dashed: bool,
    pub(crate) colour: Option<usize>,
}

impl Series {
    /// Any shape, with error bars where the points have them.
    pub fn new<P: Into<Point>>(
        name: impl Into<String>,
        shape: Shape,
        points: impl IntoIterator<Item = P>,
    ) -> Self {
        let points = points.into_iter().map(Into::into).collect();
        Self { name: name.into(), points, shape, dashed: false, colour: None }
    }

    /// A line through the points, in the order given.
    pub fn line<P: Into<Point>>(name: impl Into<String>, points: impl IntoIterator<Item = P>) -> Self {
        Self::new(name, Shape::Line, points)
    }

    /// A line that keeps its height until the next point.
    pub fn steps<P: Into<Point>>(name: impl Into<String>, points: impl IntoIterator<Item = P>) -> Self {
        Self::new(name, Shape::Steps, points)
    }

    /// Marks only.
    pub fn points<P: Into<Point>>(name: impl Into<String>, points: impl IntoIterator<Item = P>) -> Self {
        Self::new(name, Shape::Points, points)
    }

    /// Marks joined by a thin line.
    pub fn points_and_line<P: Into<Point>>(
        name: impl Into<String>,
        points: impl IntoIterator<Item = P>,
    ) -> Self {
        Self::new(name, Shape::PointsAndLine, points)
    }

    /// A dashed line.
    #[must_use]
    pub fn dashed(self) -> Self {
        Self { dashed: true, ..self }
    }

    /// The palette's colour with this number instead of the next one: for series that belong together.
    #[must_use]
    pub fn colour(self, number: usize) -> Self {
        Self { colour: Some(number), ..self }
    }
}
