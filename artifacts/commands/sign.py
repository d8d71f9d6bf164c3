"""`tandem-bundle sign`: puts a signature into a bundle.

Knows nothing of who trusts the key.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from tandem.artifacts.commands.arguments import bundle_argument, key_file


@click.command("sign", short_help="Sign BUNDLE with a key of your own.")
@bundle_argument
@click.option("--key", required=True, type=key_file, help="Private key, PEM.")
@click.option(
    "--password", metavar="TEXT", help="... its password; TANDEM_BUNDLE_SIGN_PASSWORD keeps it out of ps.  [asked for]"
)
def command(bundle: Path, key: Path, password: str | None) -> None:
    """Sign every byte of BUNDLE with a key of your own, offline (OpenSSF model-signing; an earlier signature goes).

    \b
    A key, and its public half for those who shall trust you:
      openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out private.pem
      openssl pkey -in private.pem -pubout -out public.pem
    """
    from tandem.artifacts import layout
    from tandem.artifacts.signing import is_encrypted, sign

    if password is None and is_encrypted(key) and sys.stdin.isatty():
        password = click.prompt(f"Password of {key}", hide_input=True, err=True)
    public = sign(bundle, key, password)
    click.echo(f"{click.format_filename(bundle / layout.SIGNATURE)}: signed with the key {public.hint[:16]}")
