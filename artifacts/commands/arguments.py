"""Arguments that the commands of `tandem-bundle` share.

Knows nothing of what the commands do.
"""

from __future__ import annotations

from pathlib import Path

import click

bundle_argument = click.argument("bundle", type=click.Path(path_type=Path))
key_file = click.Path(path_type=Path, exists=True, dir_okay=False)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
plain_http_option = click.option(
    "--plain-http", is_flag=True, help="Speak to the registry without TLS, as is done on loopback anyway."
)
