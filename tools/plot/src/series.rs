//! Series of points, which are drawn in a panel.

/// One value. It has an error bar if `low` or `high` differ from it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Horizontal position.
    pub x: f64,
    /// Vertical position.
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

/// The style in which a series is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// A line through the points, in the given order.
    Line,
    /// A line that is horizontal up to the next point: for settings.
    Steps,
    /// Markers only.
    Points,
    /// Markers joined by a thin line.
    PointsAndLine,
    /// The area between `low` and `high`, in a light colour: a range around another series.
    Band,
    /// The area between `low` and `high`, in a full colour: a layer of a stack.
    Layer,
}

/// A named sequence of points.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    pub(crate) name: String,
    pub(crate) points: Vec<Point>,
    pub(crate) shape: Shape,
    pub(crate) dashed: bool,
    pub(crate) colour: Option<usize>,
}

impl Series {
    /// A series in any style, with error bars if the points have them.
    pub fn new<P: Into<Point>>(
        name: impl Into<String>,
        shape: Shape,
        points: impl IntoIterator<Item = P>,
    ) -> Self {
        let points = points.into_iter().map(Into::into).collect();
        Self { name: name.into(), points, shape, dashed: false, colour: None }
    }

    /// A line through the points, in the given order.
    pub fn line<P: Into<Point>>(name: impl Into<String>, points: impl IntoIterator<Item = P>) -> Self {
        Self::new(name, Shape::Line, points)
    }

    /// A line that is horizontal up to the next point.
    pub fn steps<P: Into<Point>>(name: impl Into<String>, points: impl IntoIterator<Item = P>) -> Self {
        Self::new(name, Shape::Steps, points)
    }

    /// Markers only.
    pub fn points<P: Into<Point>>(name: impl Into<String>, points: impl IntoIterator<Item = P>) -> Self {
        Self::new(name, Shape::Points, points)
    }

    /// Markers joined by a thin line.
    pub fn points_and_line<P: Into<Point>>(
        name: impl Into<String>,
        points: impl IntoIterator<Item = P>,
    ) -> Self {
        Self::new(name, Shape::PointsAndLine, points)
    }

    /// A line without a name, for means over the interval that ends at each point.
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

    /// Stacked layers: each row has a name and its values at the positions `x`. The last row is on
    /// top.
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

    /// Draws the line dashed.
    #[must_use]
    pub fn dashed(self) -> Self {
        Self { dashed: true, ..self }
    }

    /// Uses the colour with this number in the palette instead of the next one, so that related
    /// series can share a colour.
    #[must_use]
    pub fn colour(self, number: usize) -> Self {
        Self { colour: Some(number), ..self }
    }
}
