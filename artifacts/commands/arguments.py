"""Arguments that the commands of `tandem-bundle` share.

Knows nothing of what the commands do.
"""

from __future__ import annotations

from pathlib import Path

import click

bundle_argument = click.argument("bundle", type=click.Path(path_type=Path))
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
