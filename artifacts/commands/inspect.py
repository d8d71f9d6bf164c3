"""`tandem-bundle inspect`: what a bundle is, where it may run and why not.

Reads no weights but their header.
"""

from __future__ import annotations

import json
from pathlib import Path

import click

from tandem.artifacts import report
from tandem.artifacts.commands.arguments import bundle_argument, json_option
from tandem.artifacts.reader import open_bundle


@click.command("inspect", short_help="What BUNDLE is and where it may run.")
@bundle_argument
@json_option
def command(bundle: Path, as_json: bool) -> None:
    """What BUNDLE is, where it may run and why not, what it holds and what it costs."""
    facts = report.facts(open_bundle(bundle))
    click.echo(json.dumps(facts, indent=2, ensure_ascii=False) if as_json else "\n".join(report.lines(facts)))
