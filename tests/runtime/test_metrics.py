"""Instruments and Prometheus' text format, read back by a strict reader."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.runtime.metrics import Counter, Gauge, Histogram, LabelledCounter, exposition
from tests.exposition import read, value

finite = st.floats(-1e9, 1e9, allow_nan=False)


def test_a_page_to_the_letter() -> None:
    requests, ends = Counter("requests_total", "All."), LabelledCounter("ends_total", "By how.", "how", ["a", "b"])
    seconds = Histogram("seconds", "Long\\text\nof two lines.", (0.5, 1))
    requests.add()
    requests.add(2)
    ends.add("b")
    for taken in (0.5, 0.75, 7.0):
        seconds.observe(taken)
    free = Gauge("free", "Now.", lambda: 0.25)
    assert exposition([requests, ends, free, seconds], {"model_name": 'a"b'}).splitlines() == [
        "# HELP tandem:requests_total All.",
        "# TYPE tandem:requests_total counter",
        'tandem:requests_total{model_name="a\\"b"} 3',
        "# HELP tandem:ends_total By how.",
        "# TYPE tandem:ends_total counter",
        'tandem:ends_total{model_name="a\\"b",how="a"} 0',
        'tandem:ends_total{model_name="a\\"b",how="b"} 1',
        "# HELP tandem:free Now.",
        "# TYPE tandem:free gauge",
        'tandem:free{model_name="a\\"b"} 0.25',
        "# HELP tandem:seconds Long\\\\text\\nof two lines.",
        "# TYPE tandem:seconds histogram",
        'tandem:seconds_bucket{model_name="a\\"b",le="0.5"} 1',
        'tandem:seconds_bucket{model_name="a\\"b",le="1.0"} 2',
        'tandem:seconds_bucket{model_name="a\\"b",le="+Inf"} 3',
        'tandem:seconds_sum{model_name="a\\"b"} 8.25',
        'tandem:seconds_count{model_name="a\\"b"} 3',
    ]


@given(model=st.text(), text=st.text(min_size=1), how=st.text())
def test_any_text_comes_back(model: str, text: str, how: str) -> None:
    counter = LabelledCounter("ends_total", text, "how", [how])
    (family,) = read(exposition([counter], {"model_name": model})).values()
    assert family.text == text
    assert list(family.samples) == [("tandem:ends_total", frozenset({("model_name", model), ("how", how)}))]


@given(number=st.floats(), whole=st.integers(0, 2**70))
def test_any_number_comes_back(number: float, whole: int) -> None:
    page = exposition([Gauge("a", "A.", lambda: number), Gauge("b", "B.", lambda: whole)], {"x": "y"})
    assert math.isnan(number) or value(page, "tandem:a", x="y") == number
    assert value(page, "tandem:b", x="y") == float(whole)


@given(
    bounds=st.lists(finite, min_size=1, max_size=8, unique=True).map(sorted),
    seen=st.lists(finite, max_size=40),
    at=st.data(),
)
def test_a_histogram_counts_what_is_at_most_each_bound(
    bounds: list[float], seen: list[float], at: st.DataObject
) -> None:
    seen += at.draw(st.lists(st.sampled_from(bounds), max_size=4))
    histogram = Histogram("seconds", "Text.", bounds)
    for number in seen:
        histogram.observe(number)
    samples = [(suffix, labels.get("le"), number) for suffix, labels, number in histogram.samples()]
    wanted = [("_bucket", repr(bound), sum(number <= bound for number in seen)) for bound in bounds]
    assert samples[:-2] == [*wanted, ("_bucket", "+Inf", len(seen))]
    assert samples[-1] == ("_count", None, len(seen))
    assert samples[-2][2] == pytest.approx(math.fsum(seen), abs=1e-3)


def test_labels_are_bounded() -> None:
    fixed = LabelledCounter("a_total", "A.", "how", ["x"])
    growing = LabelledCounter("b_total", "B.", "how", (), most=2)
    for number in range(1000):
        fixed.add(str(number))
        growing.add(str(number % 5), 2)
    assert fixed.values == {"x": 0, "other": 1000}
    assert growing.values == {"0": 400, "1": 400, "other": 1200}


def test_one_writes_while_others_read() -> None:
    """Pages read meanwhile are sound, and no counter of a later page is below that of an earlier one."""
    counter, ends = Counter("a_total", "A."), LabelledCounter("b_total", "B.", "how", (), most=50)
    seconds = Histogram("c", "C.", (1, 2, 3))
    done, failures = threading.Event(), list[BaseException]()

    def write() -> None:
        for number in range(30_000):
            counter.add()
            ends.add(str(number % 60))
            seconds.observe(number % 5)
        done.set()

    def watch() -> None:
        last: dict[object, float] = {}
        while not done.is_set():
            families = read(exposition([counter, ends, seconds], {"x": "y"})).values()
            now = {key: number for family in families for key, number in family.samples.items()}
            assert all(now[key] >= number for key, number in last.items())
            last = now

    threads = [threading.Thread(target=_caught, args=(work, failures)) for work in (write, watch, watch)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    page = exposition([counter, ends, seconds], {"x": "y"})
    assert value(page, "tandem:a_total", x="y") == value(page, "tandem:c_count", x="y") == 30_000
    assert sum(ends.values.values()) == 30_000


def _caught(work: Callable[[], None], failures: list[BaseException]) -> None:
    try:
        work()
    except BaseException as error:
        failures.append(error)
