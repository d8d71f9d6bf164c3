"""`tandem-bundle diff`: what changed between two bundles, in words.

Exit codes as those of diff(1): 0 the same content, 1 another, 2 trouble.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from tandem.artifacts.commands.arguments import json_option
from tandem.artifacts.diff import verdict
from tandem.artifacts.reader import open_bundle
from tandem.errors import BundleError, TandemError

TROUBLE = 2


@click.command("diff", short_help="What changed from bundle A to bundle B.")
@click.argument("one", metavar="A", type=click.Path(path_type=Path))
@click.argument("two", metavar="B", type=click.Path(path_type=Path))
@json_option
@click.pass_context
def command(ctx: click.Context, one: Path, two: Path, as_json: bool) -> None:
    """What changed from bundle A to bundle B: weights, kernels, flags, tools, prices and all else.

    The exit code is 0 if all but the measurements is equal byte by byte, 1 if not, and 2 for a bundle that cannot be
    read.
    """
    try:
        before, after = open_bundle(one), open_bundle(two)
        total = 0 if before.manifest.content_id == after.manifest.content_id else before.weights.data.nbytes
        with click.progressbar(length=total, label="Comparing", file=sys.stderr, hidden=not sys.stderr.isatty()) as bar:
            found = verdict.compare(before, after, bar.update)
        facts = verdict.facts(before, after, found)
    except OSError as error:
        raise _trouble(BundleError(f"{error.filename or one}: {error.strerror or error}")) from error
    except TandemError as error:
        raise _trouble(error)  # noqa: B904 - the same error
    click.echo(json.dumps(facts, indent=2, ensure_ascii=False) if as_json else "\n".join(verdict.lines(found)))
    ctx.exit(0 if found.same_content else 1)


def _trouble(error: TandemError) -> TandemError:
    error.exit_code = TROUBLE
    return error
