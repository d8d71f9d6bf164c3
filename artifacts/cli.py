"""`tandem-bundle`: a group of commands, each loaded only when it is asked for or listed.

Other rooms and packages add commands through the entry points `tandem.bundle_commands`; nothing is known of them here.
"""

from __future__ import annotations

import importlib
import sys
from importlib.metadata import EntryPoint, entry_points

import click

from tandem import __version__
from tandem.command import examples, run_command
from tandem.errors import UsageError

COMMANDS = {
    "inspect": "tandem.artifacts.commands.inspect",
    "verify": "tandem.artifacts.commands.verify",
    "diff": "tandem.artifacts.commands.diff",
    "sign": "tandem.artifacts.commands.sign",
    "push": "tandem.artifacts.commands.push",
    "pull": "tandem.artifacts.commands.pull",
}
"""This room's commands in the order of the help page; each module calls its own `command`."""

ENTRY_POINTS = "tandem.bundle_commands"
"""Group of `name = module:command [extra]`; the extra is what the command needs. Its module is listed by every
help page, so it imports what is heavy where it is used."""


class _Group(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*COMMANDS, *sorted(set(entry_points(group=ENTRY_POINTS).names) - set(COMMANDS))]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if module := COMMANDS.get(cmd_name):
            return importlib.import_module(module).command
        for found in entry_points(group=ENTRY_POINTS, name=cmd_name):
            return _load(found)
        return None


def _load(found: EntryPoint) -> click.Command:
    try:
        return found.load()
    except ModuleNotFoundError as error:
        return _absent(found, error.name)


def _absent(found: EntryPoint, module: str | None) -> click.Command:
    """Stands for a command whose extra is not installed: listed, and refused with what to install."""
    package = found.dist.name if found.dist else "tandem-llm"
    remedy = f"pip install '{package}[{','.join(found.extras)}]'" if found.extras else f"pip install {module}"

    def refuse() -> None:
        raise UsageError(f"tandem-bundle {found.name} needs {module}, which is not installed: {remedy}")

    anything = {"ignore_unknown_options": True, "allow_extra_args": True}
    return click.Command(
        found.name, callback=refuse, context_settings=anything, add_help_option=False, short_help=f"Needs {remedy}."
    )


EXAMPLES = examples(
    "tandem-bundle inspect BUNDLE  # does it suit this machine?",
    "tandem-bundle diff OLD NEW",
    "tandem-bundle push BUNDLE oci://HOST/NAME:TAG",
    "tandem-bundle pull oci://HOST/NAME:TAG BUNDLE --key public.pem",
)


@click.group(
    cls=_Group, no_args_is_help=True, context_settings={"help_option_names": ["-h", "--help"]}, epilog=EXAMPLES
)
@click.version_option(__version__)
def cli() -> None:
    """Looks at bundles: what they are, where they may run and why not. Signs them, and takes them elsewhere."""


def main() -> int:
    return run_command(cli, "tandem-bundle")


if __name__ == "__main__":
    sys.exit(main())
