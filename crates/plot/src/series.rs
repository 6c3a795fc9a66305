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
    /// What lies between `low` and `high`, lightly: the range around another series.
    Band,
    /// What lies between `low` and `high`, fully: a layer of a stack.
    Layer,
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

    /// A line without name, for means over the time before each point.
    pub fn steps_before(points: impl IntoIterator<Item = (f64, f64)>) -> Self {
        let points: Vec<(f64, f64)> = points.into_iter().collect();
        let begin = match points.as_slice() {
            [first, second, ..] => Some((first.0 - (second.0 - first.0), first.1)),
            _ => None,
        };
        let corners = points.windows(2).map(|pair| (pair[0].0, pair[1].1));
        let corners: Vec<_> = begin.into_iter().chain(corners).chain(points.last().copied()).collect();
        Self::steps("", corners)
    }

    /// Layers that stand on one another: each row of values with its name, all at the same places `x`. The last is on top.
    pub fn stacked(
        x: &[f64],
        rows: impl IntoIterator<Item = (impl Into<String>, impl IntoIterator<Item = f64>)>,
    ) -> Vec<Self> {
        let mut below = vec![0.0; x.len()];
        let mut all = Vec::new();
        for (name, values) in rows {
            let points = x.iter().zip(&mut below).zip(values).map(|((&x, below), value)| {
                let low = *below;
                *below += value;
                Point { x, y: *below, low, high: *below }
            });
            all.push(Self::new(name, Shape::Layer, points.collect::<Vec<_>>()));
        }
        all
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
