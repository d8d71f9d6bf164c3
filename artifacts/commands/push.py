"""`tandem-bundle push`: sends a bundle to a registry or a hub.

Knows nothing of their protocols.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from tandem.artifacts.commands.arguments import bundle_argument, plain_http_option


@click.command("push", short_help="Verify BUNDLE and send it there.")
@bundle_argument
@click.argument("target")
@plain_http_option
@click.option("--public", is_flag=True, help="Make a hub repository that is not there yet for all to see.")
def command(bundle: Path, target: str, plain_http: bool, public: bool) -> None:
    """Verify BUNDLE and send it to TARGET: oci://HOST/REPOSITORY:TAG or hf://OWNER/NAME[@BRANCH].

    What is there already is not sent again, so run it again after a cut. Prints where exactly the bundle lies now.
    Logins are those of docker and of hf.
    """
    from tandem.artifacts.commands.meter import meter
    from tandem.artifacts.shipping import address
    from tandem.artifacts.shipping.outbox import pack

    place = address.parse(target)
    if isinstance(place, address.OciAddress):
        from tandem.artifacts.shipping import oci

        outbox = pack(bundle, meter("Verifying"))
        with meter("Pushing")(outbox.size) as progress:
            click.echo(oci.push(outbox, place, progress, plain_http=plain_http))
    else:
        from tandem.artifacts.shipping import hub

        outbox = pack(bundle, meter("Verifying"))
        click.echo(hub.push(outbox, place, public=public, bars=sys.stderr.isatty()))
