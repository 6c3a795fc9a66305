"""Small charts as SVG: panels one above the other with a common horizontal axis."""

import math
from html import escape

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#555555", "#000000")
WIDTH, LEFT, RIGHT, TOP, HEIGHT, GAP = 880, 64, 190, 46, 210, 18


class Series:
    """Points (x, y); `kind` is "line", "dashes" or "points"."""

    def __init__(self, name, points, kind="line", colour=None):
        self.name, self.points, self.kind, self.colour = name, list(points), kind, colour


class Panel:
    def __init__(self, label, series, top=None):
        self.label, self.series, self.top = label, series, top


def _ticks(low, high, about=5):
    raw = (high - low) / about
    unit = 10 ** math.floor(math.log10(raw))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= raw)
    first = math.ceil(low / step - 1e-9)
    return [step * number for number in range(first, math.floor(high / step + 1e-9) + 1)]


def _text(x, y, words, anchor="start", size=12, extra=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}"{extra}>{escape(words)}</text>'


def svg(title, note, x_label, x_range, panels):
    total = TOP + len(panels) * (HEIGHT + GAP) + 34
    plot = WIDTH - LEFT - RIGHT
    low, high = x_range

    def across(x):
        return LEFT + (x - low) / (high - low) * plot

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{total}" viewBox="0 0 {WIDTH} {total}" '
        'font-family="sans-serif" fill="#222">',
        f'<rect width="{WIDTH}" height="{total}" fill="#fff"/>',
        _text(LEFT, 20, title, size=15),
        _text(LEFT, 37, note, size=11, extra=' fill-opacity="0.7"'),
    ]
    for number, panel in enumerate(panels):
        out += _panel(panel, TOP + number * (HEIGHT + GAP), across, x_range)
    base = TOP + len(panels) * (HEIGHT + GAP) - GAP
    out += [_text(across(x), base + 15, f"{x:g}", "middle", 11) for x in _ticks(low, high, 8)]
    out += [_text(LEFT + plot / 2, base + 32, x_label, "middle"), "</svg>\n"]
    return "\n".join(out)


def _panel(panel, top, across, x_range):
    values = [y for series in panel.series for _, y in series.points]
    ceiling = panel.top or (max(values) * 1.06 if values and max(values) > 0 else 1.0)

    def up(y):
        return top + HEIGHT - min(y, ceiling * 1.02) / ceiling * HEIGHT

    right = across(x_range[1])
    out = [f'<rect x="{LEFT}" y="{top}" width="{right - LEFT:.1f}" height="{HEIGHT}" fill="none" stroke="#999"/>']
    for y in _ticks(0, ceiling):
        out.append(f'<path d="M{LEFT} {up(y):.1f}H{right:.1f}" stroke="#ddd" fill="none"/>')
        out.append(_text(LEFT - 6, up(y) + 4, f"{y:g}", "end", 11))
    middle = top + HEIGHT / 2
    out.append(_text(16, middle, panel.label, "middle", 12, f' transform="rotate(-90 16 {middle:.1f})"'))
    for number, series in enumerate(panel.series):
        colour = series.colour or COLOURS[number % len(COLOURS)]
        spots = [(across(x), up(y)) for x, y in series.points if y is not None and math.isfinite(y)]
        key = top + 12 + 17 * number
        if series.kind == "points":
            out += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in spots]
            out.append(f'<circle cx="{right + 20:.1f}" cy="{key - 4}" r="3" fill="{colour}"/>')
        else:
            dashes = ' stroke-dasharray="5 3"' if series.kind == "dashes" else ""
            stroke = f'stroke="{colour}" stroke-width="1.6" fill="none"{dashes}'
            if spots:
                out.append(f'<path d="M{" ".join(f"{x:.1f},{y:.1f}" for x, y in spots)}" {stroke}/>')
            out.append(f'<path d="M{right + 10:.1f} {key - 4}h20" {stroke}/>')
        out.append(_text(right + 36, key, series.name, size=11))
    return out


def smooth(points, count):
    """Mean of each point and the count - 1 before it."""
    return [
        (x, sum(y for _, y in points[max(0, at - count + 1) : at + 1]) / min(count, at + 1))
        for at, (x, _) in enumerate(points)
    ]
