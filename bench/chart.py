"""Charts as SVG, drawn without a library: lines over numbers, bars over names.

Knows nothing of what is drawn.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape

WIDTH, HEIGHT = 860, 430
LEFT, RIGHT, TOP, BOTTOM = 64, 230, 44, 60
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#555555", "#b8a800")
"""Told apart by all eyes (Okabe and Ito, 2008)."""


@dataclass(frozen=True, slots=True)
class Point:
    """`least` and `greatest` are drawn as a whisker where they are given; `x` is a number, or the place of a name."""

    x: float
    y: float
    least: float | None = None
    greatest: float | None = None


@dataclass(frozen=True, slots=True)
class Series:
    name: str
    points: Sequence[Point]


@dataclass(slots=True)
class Chart:
    """Lines through the points of each series; bars side by side where there are `names`, one for each whole x."""

    title: str
    x_label: str
    y_label: str
    series: list[Series] = field(default_factory=list)
    names: Sequence[str] = ()

    def svg(self) -> str:
        """ValueError where there is nothing to draw, or something that is no number."""
        points = [point for series in self.series for point in series.points]
        ends = [value for p in points for value in (p.x, p.y, p.least, p.greatest) if value is not None]
        if not points or not all(map(math.isfinite, ends)):
            raise ValueError(f"{self.title}: nothing to draw, or not a number")
        tops = [p.y if p.greatest is None else p.greatest for p in points]
        frame = Frame(self._span(points), ticks(max(tops)))
        parts = [*frame.grid(), *self._x_axis(frame), *self._words()]
        for place, series in enumerate(self.series):
            draw = self._bars if self.names else self._line
            parts += draw(frame, place, series)
            parts += self._legend(place, series.name)
        head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif"'
        body = "\n".join(parts)
        return f'{head} font-size="12">\n<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>\n{body}\n</svg>\n'

    def _span(self, points: Sequence[Point]) -> tuple[float, float]:
        if self.names:
            return -0.5, len(self.names) - 0.5
        first, last = min(p.x for p in points), max(p.x for p in points)
        return first, last if last > first else first + 1.0

    def _x_axis(self, frame: Frame) -> Iterable[str]:
        small = 11 if len(self.names) < 8 else 9
        if self.names:
            marks = list(enumerate(self.names))
        else:
            xs = sorted({p.x for series in self.series for p in series.points})
            marks = [(x, f"{x:g}") for x in thinned(xs, frame)]
        for x, name in marks:
            for line, word in enumerate(name.replace(",", "").split()):
                yield text(frame.x(x), HEIGHT - BOTTOM + 16 + 11 * line, word, "middle", size=small)

    def _words(self) -> Iterable[str]:
        yield text(LEFT, 24, self.title, size=15)
        yield text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, self.x_label, "middle")
        middle = (TOP + HEIGHT - BOTTOM) / 2
        yield text(16, middle, self.y_label, "middle", turn=f' transform="rotate(-90 16 {middle:.1f})"')

    def _line(self, frame: Frame, place: int, series: Series) -> Iterable[str]:
        colour, points = COLOURS[place % len(COLOURS)], sorted(series.points, key=lambda p: p.x)
        path = " ".join(f"{frame.x(p.x):.1f},{frame.y(p.y):.1f}" for p in points)
        yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
        for p in points:
            yield f'<circle cx="{frame.x(p.x):.1f}" cy="{frame.y(p.y):.1f}" r="3" fill="{colour}"/>'
            yield from whisker(frame, frame.x(p.x), p)

    def _bars(self, frame: Frame, place: int, series: Series) -> Iterable[str]:
        colour, width = COLOURS[place % len(COLOURS)], 0.8 / len(self.series)
        for p in series.points:
            left, right = (frame.x(p.x - 0.4 + width * at) for at in (place, place + 1))
            top, bottom = frame.y(p.y), frame.y(0.0)
            size = f'width="{right - left:.1f}" height="{bottom - top:.1f}"'
            yield f'<rect class="bar" x="{left:.1f}" y="{top:.1f}" {size} fill="{colour}"/>'
            yield from whisker(frame, (left + right) / 2, p)

    def _legend(self, place: int, name: str) -> Iterable[str]:
        left, top = WIDTH - RIGHT + 16, TOP + 10 + 20 * place
        yield f'<rect x="{left}" y="{top - 9}" width="12" height="10" fill="{COLOURS[place % len(COLOURS)]}"/>'
        yield text(left + 18, top, name)


@dataclass(frozen=True, slots=True)
class Frame:
    """Where numbers lie on the page: x in `span`, y from 0 to the last of `marks`."""

    span: tuple[float, float]
    marks: Sequence[float]

    def x(self, value: float) -> float:
        first, last = self.span
        return LEFT + (WIDTH - LEFT - RIGHT) * (value - first) / (last - first)

    def y(self, value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / self.marks[-1]

    def grid(self) -> Iterable[str]:
        for mark in self.marks:
            y = self.y(mark)
            ends = f'x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"'
            yield f'<line {ends} stroke="{"#333333" if mark == 0 else "#dddddd"}"/>'
            yield text(LEFT - 8, y + 4, f"{mark:g}", "end")


def ticks(top: float) -> list[float]:
    """From 0 in even steps of 1, 2 or 5 times a power of ten up to `top` or a little beyond, at most seven."""
    if top <= 0:
        return [0.0, 1.0]
    power = 10.0 ** math.floor(math.log10(top / 6))
    step = next(power * times for times in (1, 2, 5, 10) if power * times * 6 >= top * (1 - 1e-9))
    return [round(step * i, 12) for i in range(math.ceil(top / step - 1e-9) + 1)]


def thinned(xs: Sequence[float], frame: Frame, apart: float = 26.0) -> list[float]:
    """Those of rising numbers that stand far enough from the one before to be read."""
    kept: list[float] = []
    for x in xs:
        if not kept or frame.x(x) - frame.x(kept[-1]) >= apart:
            kept.append(x)
    return kept


def whisker(frame: Frame, x: float, point: Point) -> Iterable[str]:
    if point.least is not None and point.greatest is not None:
        ends = f'x1="{x:.1f}" x2="{x:.1f}" y1="{frame.y(point.least):.1f}" y2="{frame.y(point.greatest):.1f}"'
        yield f'<line class="whisker" {ends} stroke="#333333"/>'


def text(x: float, y: float, words: str, anchor: str = "start", size: int = 12, turn: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}"{turn}>{escape(words)}</text>'
