"""`tandem-bundle`: what a bundle is, and whether it is as it was sealed.

Knows nothing of serving or compiling.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from tandem import __version__
from tandem.artifacts import report, trust
from tandem.artifacts.reader import open_bundle
from tandem.command import run_command

_BUNDLE = click.argument("bundle", type=click.Path(path_type=Path))
_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


@click.group(no_args_is_help=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def cli() -> None:
    """Looks at bundles: what they are, where they may run and why not."""


@cli.command()
@_BUNDLE
@_JSON
def inspect(bundle: Path, as_json: bool) -> None:
    """What BUNDLE is, where it may run and why not, what it holds and what it costs."""
    facts = report.facts(open_bundle(bundle))
    click.echo(json.dumps(facts, indent=2, ensure_ascii=False) if as_json else "\n".join(report.lines(facts)))


@cli.command()
@_BUNDLE
@_JSON
@click.option("--trust-native", is_flag=True, help="Accept native code that was not built on this machine.")
def verify(bundle: Path, as_json: bool, trust_native: bool) -> None:
    """Check every byte of BUNDLE, and that its native code was built here; exit code 1 names what is wrong."""
    opened = open_bundle(bundle)
    manifest = opened.manifest
    total = sum(file.size for file in manifest.files)
    with click.progressbar(length=total, label="Verifying", file=sys.stderr, hidden=not sys.stderr.isatty()) as bar:
        opened.verify(bar.update)
    trust.require(manifest, trust_native)
    if as_json:
        ids = {"build_id": manifest.build_id, "content_id": manifest.content_id}
        click.echo(json.dumps({"path": str(bundle), "files": len(manifest.files), "bytes": total, **ids}, indent=2))
    else:
        click.echo(f"{bundle}: {len(manifest.files)} files, {total:,} bytes as sealed, content {manifest.content_id}")


def main() -> int:
    return run_command(cli, "tandem-bundle")


if __name__ == "__main__":
    sys.exit(main())
