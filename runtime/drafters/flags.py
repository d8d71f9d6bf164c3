"""The flags of `tandem-run` for what the lookup searches beside the request.

Knows nothing of what is done with them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from tandem.runtime.drafters.shelf_options import STORE_MIB, ShelfOptions

STORE = "suffix_store"
OF_STORE = ("suffix_store_mib", "suffix_store_scope", "suffix_store_readonly")
_FLAGS = (
    click.option(
        "--corpus",
        multiple=True,
        type=click.Path(path_type=Path),
        help="Look drafts up in this folder too, which tandem-compile corpus wrote; may be repeated.",
    ),
    click.option(
        "--suffix-store",
        metavar="DIR",
        type=click.Path(path_type=Path),
        help="Keep the token ids of prompts and answers in this folder, and look drafts up in them.",
    ),
    click.option("--suffix-store-scope", type=click.Choice(["all", "outputs"]), default="all", help="What is kept."),
    click.option("--suffix-store-mib", type=click.IntRange(1, 4096), default=STORE_MIB, help="Most MiB of ids kept."),
    click.option("--suffix-store-readonly", is_flag=True, help="Keep nothing more."),
)


def shelf_flags(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds them to a click command."""
    return reduce(lambda made, flag: flag(made), reversed(_FLAGS), command)


def shelf_options(flags: dict[str, Any]) -> ShelfOptions:
    """What they say. click.UsageError for flags of a store without one."""
    context = click.get_current_context()
    for name in OF_STORE if flags[STORE] is None else ():
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"--{name.replace('_', '-')} goes with --suffix-store")
    return ShelfOptions(flags["corpus"], flags[STORE], *(flags[name] for name in OF_STORE))
