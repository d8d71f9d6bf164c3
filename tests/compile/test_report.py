"""The build report: a well-formed picture that holds the measured points, and a page with every price."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import pytest

from tandem.compile.report import page, staircase

SVG = "{http://www.w3.org/2000/svg}"


def prices(scale: float, classes: tuple[str, ...] = ("1024", "2048")) -> dict[str, Any]:
    table: dict[str, Any] = {
        name: {
            "extend": {"1": scale, "128": 9 * scale},
            "verify-chain": {"1": scale * i, "16": 2 * scale * i, "32": 4 * scale * i},
            "verify-tree": {"1": scale * i, "32": 5 * scale * i},
            "commit": {"1": 0.01, "16": 0.02},
            "plain": scale,
        }
        for i, name in enumerate(classes, 1)
    }
    return table | {"step_ms": 0.1, "measured": "2026-01-01 on a-cpu, 2 cores, medians"}


@pytest.mark.parametrize("scale", [0.013, 1.0, 250.0])
def test_the_staircase_holds_the_measured_points(scale: float) -> None:
    table = prices(scale)
    root = ElementTree.fromstring(staircase(table))
    assert root.tag == f"{SVG}svg"
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    curves = [line.attrib["points"].split() for line in root.iter(f"{SVG}polyline")]
    wanted = [table[name][kind] for name in ("1024", "2048") for kind in ("verify-chain", "verify-tree")]
    assert len(curves) == len(wanted)
    points: list[tuple[float, float, float, float]] = []  # rows, ms, x, y
    for curve, measured in zip(curves, wanted, strict=True):
        assert len(curve) == len(measured)
        for point, (rows, ms) in zip(curve, measured.items(), strict=True):
            x, y = map(float, point.split(","))
            assert 0 <= x <= width and 0 <= y <= height
            points.append((float(rows), ms, x, y))
    # Straight scales: x rises with rows and y falls with ms, each at one rate.
    (r0, m0, x0, y0), (r1, m1, x1, y1) = min(points), max(points)
    for rows, ms, x, y in points:
        assert x == pytest.approx(x0 + (x1 - x0) * (rows - r0) / (r1 - r0), abs=0.11)
        assert y == pytest.approx(y0 + (y1 - y0) * (ms - m0) / (m1 - m0), abs=0.11)
    assert x1 > x0 and y1 < y0


def test_the_axis_tells_small_prices_apart() -> None:
    texts = [text.text for text in ElementTree.fromstring(staircase(prices(0.013))).iter(f"{SVG}text")]
    assert {"0.13", "0.065"} <= set(texts)  # the most is 2 x 5 x 0.013, and half of it


def test_a_verify_of_one_row_only_is_drawn() -> None:
    table = {"64": {"verify-chain": {"1": 2.0}, "verify-tree": {"1": 2.5}}}
    ElementTree.fromstring(staircase(table))


def test_the_page_holds_facts_proof_and_prices() -> None:
    summary = {"name": "Tiny", "profile": "bf16", "device": "cpu-x86-64-v3", "lanes": 8}
    text = page(summary, prices(1.0), {"cases": 1234, "differing": 0}, None)
    lines = text.splitlines()
    assert lines[0] == "# Tiny, bf16 for cpu-x86-64-v3"
    assert "1234 comparisons with one-token steps, 0 differing bits." in lines
    assert "| lanes | 8 |" in lines
    assert "| rows | 1 | 16 | 32 | 128 |" in lines
    assert "| extend | 1.00 |  |  | 9.00 |" in lines
    assert "| verify-chain | 2.00 | 4.00 | 8.00 |  |" in lines  # class 2048
