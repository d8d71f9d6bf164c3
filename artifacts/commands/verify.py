"""`tandem-bundle verify`: whether a bundle is as it was sealed, and by whom.

Knows nothing of serving or compiling.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from tandem.artifacts import trust
from tandem.artifacts.commands.arguments import bundle_argument, json_option
from tandem.artifacts.reader import open_bundle


@click.command("verify")
@bundle_argument
@json_option
@click.option("--trust-native", is_flag=True, help="Accept native code that was not built on this machine.")
def command(bundle: Path, as_json: bool, trust_native: bool) -> None:
    """Check every byte of BUNDLE, and that its native code was built here; exit code 1 names what is wrong."""
    opened = open_bundle(bundle)
    manifest = opened.manifest
    total = sum(file.size for file in manifest.files)
    with click.progressbar(length=total, label="Verifying", file=sys.stderr, hidden=not sys.stderr.isatty()) as bar:
        opened.verify(bar.update)
    trust.require(manifest, trust_native)
    if as_json:
        ids = {name: getattr(manifest, name) for name in ("build_id", "content_id", "measured_id")}
        click.echo(json.dumps({"path": str(bundle), "files": len(manifest.files), "bytes": total, **ids}, indent=2))
    else:
        click.echo(f"{bundle}: {len(manifest.files)} files, {total:,} bytes as sealed, content {manifest.content_id}")
