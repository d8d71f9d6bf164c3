"""A strict reader of Prometheus' text format 0.0.4, written from its description and not from the writer's code."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
HELP = re.compile(rf"# HELP ({NAME}) ((?:[^\\\n]|\\\\|\\n)*)")
TYPE = re.compile(rf"# TYPE ({NAME}) (counter|gauge|histogram)")
PAIR = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\\\|\\n|\\")*)"')
SAMPLE = re.compile(rf"({NAME})\{{({PAIR.pattern}(?:,{PAIR.pattern})*)\}} (\S+)")
UNESCAPED = {"\\\\": "\\", "\\n": "\n", '\\"': '"'}

Labels = frozenset[tuple[str, str]]


@dataclass
class Read:
    """One family: `samples` by (full name, labels)."""

    text: str
    kind: str
    samples: dict[tuple[str, Labels], float] = field(default_factory=dict)


def read(page: str) -> dict[str, Read]:
    """Families by name. AssertionError for whatever a scraper could stumble over."""
    assert page.endswith("\n")
    families: dict[str, Read] = {}
    lines = iter(page[:-1].split("\n"))
    for line in lines:
        if line.startswith("# HELP"):
            name, text = _whole(HELP, line).groups()[:2]
            kind = _whole(TYPE, next(lines))
            assert kind[1] == name and name not in families
            families[name] = here = Read(_plain(text), kind[2])
            continue
        sample = _whole(SAMPLE, line)
        labels = _labels(sample[2])
        ends = ("_bucket", "_sum", "_count") if here.kind == "histogram" else ("",)
        assert sample[1] in [name + end for end in ends]
        assert (sample[1], labels) not in here.samples
        here.samples[sample[1], labels] = _value(sample.groups()[-1])
    for name, family in families.items():
        _check(name, family)
    return families


def value(page: str, name: str, **labels: str) -> float:
    """The one sample of this full name that has these labels and no others but `model_name`."""
    found = [
        number
        for family in read(page).values()
        for (full, pairs), number in family.samples.items()
        if full == name and {key: text for key, text in pairs if key != "model_name"} == labels
    ]
    assert len(found) == 1, f"{len(found)} samples of {name}"
    return found[0]


def _check(name: str, family: Read) -> None:
    values = family.samples.values()
    assert family.text and (family.kind == "gauge" or all(number >= 0 for number in values))
    assert name.endswith("_total") == (family.kind == "counter")
    if family.kind == "histogram":
        by_name: dict[str, list[tuple[Labels, float]]] = {}
        for (full, labels), number in family.samples.items():
            by_name.setdefault(full, []).append((labels, number))
        buckets = [(_value(dict(labels)["le"]), number) for labels, number in by_name[f"{name}_bucket"]]
        [(_, count)], [_] = by_name[f"{name}_count"], by_name[f"{name}_sum"]
        assert buckets == sorted(buckets) and [n for _, n in buckets] == sorted(n for _, n in buckets)
        assert buckets[-1] == (math.inf, count)


def _whole(pattern: re.Pattern[str], line: str) -> re.Match[str]:
    found = pattern.fullmatch(line)
    assert found, f"not of the format: {line!r}"
    return found


def _labels(text: str) -> Labels:
    pairs = [(key, _plain(quoted)) for key, quoted in PAIR.findall(text)]
    assert len(dict(pairs)) == len(pairs)
    return frozenset(pairs)


def _plain(text: str) -> str:
    return re.sub(r'\\[\\n"]', lambda found: UNESCAPED[found[0]], text)


def _value(text: str) -> float:
    assert re.fullmatch(r"[+-]?Inf|NaN|[+-]?\d+(\.\d+)?(e[+-]\d+)?", text), text
    return float(text)
