"""`tandem-bundle verify`: whether a bundle, or a corpus, is as it was sealed, and a bundle by whom.

Knows nothing of serving or compiling.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from tandem.artifacts import layout, suffix, trust
from tandem.artifacts.commands.arguments import bundle_argument, json_option, key_file
from tandem.artifacts.digest import Progress
from tandem.artifacts.reader import Bundle, open_bundle
from tandem.errors import BundleUntrusted, UsageError


@click.command("verify", short_help="Check every byte of BUNDLE, and its origin; or of a corpus.")
@bundle_argument
@json_option
@click.option("--trust-native", is_flag=True, help="Accept native code that was not built on this machine.")
@click.option(
    "--key", type=key_file, help="Public key, PEM, that must have signed it; where it was built is no matter."
)
def command(bundle: Path, as_json: bool, trust_native: bool, key: Path | None) -> None:
    """Check every byte of BUNDLE, and that its native code was built here or that a key you trust signed it.

    BUNDLE may also be a corpus of tandem-compile corpus, of which every byte is checked; nobody signs one. Exit code 1
    names what is wrong.
    """
    if suffix.is_corpus(bundle):
        if trust_native or key:
            flag = "--key" if key else "--trust-native"
            raise UsageError(f"{flag} is for bundles, and {bundle} is a corpus, which has no code; leave it out")
        _verify_corpus(bundle, as_json)
        return
    opened = open_bundle(bundle)
    manifest = opened.manifest
    total = sum(file.size for file in manifest.files)
    with _progress(total) as advance:
        opened.verify(advance)
    if key is None:
        trust.require(bundle, manifest, trust_native=trust_native)
    else:
        _require_signature(opened, key)
    if as_json:
        ids = {name: getattr(manifest, name) for name in ("build_id", "content_id", "measured_id")}
        click.echo(json.dumps({"path": str(bundle), "files": len(manifest.files), "bytes": total, **ids}, indent=2))
    else:
        name, count = click.format_filename(bundle), len(manifest.files)
        click.echo(f"{name}: {count} files, {total:,} bytes as sealed, content {manifest.content_id}")


def _verify_corpus(path: Path, as_json: bool) -> None:
    meta = suffix.read_meta(path)
    total = 4 * (meta.tokens.count + meta.suffixes.count)
    with _progress(total) as advance:
        suffix.verify(path, advance)
    found = {"documents": meta.documents, "ids": meta.suffixes.count, "tokenizer": meta.tokenizer}
    if as_json:
        click.echo(json.dumps({"path": str(path), "bytes": total, **found}, indent=2))
    else:
        name, what = click.format_filename(path), f"{meta.documents:,} documents of {meta.suffixes.count:,} ids"
        click.echo(f"{name}: a corpus, {what}, {total:,} bytes as sealed, of the tokenizer {meta.tokenizer}")


@contextmanager
def _progress(total: int) -> Iterator[Progress]:
    """A bar of bytes where somebody looks on."""
    with click.progressbar(length=total, label="Verifying", file=sys.stderr, hidden=not sys.stderr.isatty()) as bar:
        yield bar.update


def _require_signature(bundle: Bundle, path: Path) -> None:
    from tandem.artifacts import signature

    key = signature.load_key(path)
    signed = signature.read(bundle.path)
    if signed is None:
        raise BundleUntrusted(f"{bundle.path}: not signed; tandem-bundle sign puts {layout.SIGNATURE} into it")
    signature.check(signed, bundle.manifest, key)
