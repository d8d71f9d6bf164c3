"""`tandem-bundle pull`: brings a bundle from a registry or a hub.

Knows nothing of their protocols.
"""

from __future__ import annotations

import os
from pathlib import Path

import click

from tandem.artifacts.commands.arguments import key_file, plain_http_option


@click.command("pull", short_help="Bring a bundle from a registry or hub.")
@click.argument("source")
@click.argument("bundle", type=click.Path(path_type=Path))
@plain_http_option
@click.option("--replace", is_flag=True, help="Put it in the place of the bundle that is there.")
@click.option("--key", type=key_file, help="Only if this public key signed it.")
def command(source: str, bundle: Path, plain_http: bool, replace: bool, key: Path | None) -> None:
    """Bring a bundle from SOURCE, oci://HOST/REPOSITORY:TAG or hf://OWNER/NAME[@REVISION], to the folder BUNDLE.

    It appears there when every byte has been checked. After a cut the same command goes on where it stopped.
    """
    from tandem.artifacts.commands.meter import meter
    from tandem.artifacts.shipping import address, transfer

    place = address.parse(source)
    origin: transfer.Source
    if isinstance(place, address.OciAddress):
        from tandem.artifacts.shipping.oci import OciSource

        origin = OciSource(place, plain_http=plain_http)
    else:
        from tandem.artifacts.shipping.hub import HubSource

        origin = HubSource(place)
    transfer.pull(origin, bundle, meter("Pulling"), replace=replace, key=key)
    click.echo(os.fsencode(bundle))
