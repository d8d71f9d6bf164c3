"""`tandem-bundle export-onnx`: a bundle in, its plain step as an ONNX model out.

Loaded by every help page of `tandem-bundle`, so what is heavy is imported inside.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from importlib.util import find_spec
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import click

from tandem.artifacts.commands.arguments import bundle_argument, json_option
from tandem.errors import UsageError

if TYPE_CHECKING:
    from tandem.artifacts.reader import Bundle
    from tandem.compile.onnx.check import Comparison
    from tandem.compile.onnx.parameters import Parameters

NEEDS = "tandem-bundle export-onnx needs {}, which is not installed: pip install 'tandem-llm[onnx]'"


@click.command(
    "export-onnx", short_help="Write the plain step as an ONNX model.", context_settings={"show_default": True}
)
@bundle_argument
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, dir_okay=False), default="model.onnx", help="The model's file."
)
@click.option("--weights", type=click.Choice(["fp32", "bf16"]), default="fp32", help="bf16 is for bf16 bundles.")
@click.option("--no-check", is_flag=True, help="Do not hold the model against the operators' definitions.")
@click.option("--replace", is_flag=True, help="Replace an older model of that name.")
@json_option
def command(bundle: Path, output: Path, weights: str, no_check: bool, replace: bool, as_json: bool) -> None:
    """Write the plain step of BUNDLE as an ONNX model, to look at it or to carry it elsewhere.

    The weights go to a second file beside it, OUTPUT.data. Inputs are input_ids and past_key_values.N.key and .value,
    outputs logits and present.N.key and .value.
    """
    for module in ("torch", "onnx"):
        if find_spec(module) is None:
            raise UsageError(NEEDS.format(module))
    from tandem.artifacts.reader import open_bundle
    from tandem.compile.onnx.export import data_file
    from tandem.compile.onnx.parameters import Parameters

    if not output.name:
        raise UsageError("-o is empty; give the name of a file, such as model.onnx")
    targets = (data_file(output), output)
    _check_targets(bundle, targets, replace)
    opened = open_bundle(bundle, verify="digests")
    parameters = Parameters.of(opened)
    if weights == "bf16" and parameters.profile.name != "bf16":
        raise UsageError(f"--weights bf16: {bundle} is {parameters.profile.name}, which bf16 would round; use fp32")
    with TemporaryDirectory(prefix=f".{output.name}.partial-", dir=output.parent) as folder:
        staged = Path(folder) / output.name
        _write(opened, parameters, staged, bf16=weights == "bf16")
        compared = None if no_check else _check(staged, parameters)
        for target in targets:  # the model last: with it stands what it points at
            os.replace(Path(folder) / target.name, target)
    if as_json:
        files = {"path": str(output), "data": str(data_file(output)), "weights": weights}
        return click.echo(json.dumps(files | {"compared": asdict(compared) if compared else None}, indent=2))
    click.echo(str(output))


def _check_targets(bundle: Path, targets: tuple[Path, Path], replace: bool) -> None:
    output = targets[-1]
    if not output.parent.is_dir():
        raise UsageError(f"-o {output}: there is no folder {output.parent}; make it first")
    if bundle.resolve() in output.resolve().parents:
        raise UsageError(f"-o {output}: a bundle with another file in it is refused; write beside it")
    for target in targets:
        if target.is_dir() or (target.exists() and not replace):
            raise UsageError(f"-o {output}: {target} exists; give another name" + " or --replace" * target.is_file())


def _write(bundle: Bundle, parameters: Parameters, path: Path, *, bf16: bool) -> None:
    from tandem.compile.onnx.export import write_model

    manifest = bundle.manifest
    facts = {
        "tandem.bundle": manifest.name,
        "tandem.profile": manifest.profile,
        "tandem.content_id": manifest.content_id,
        "tandem.context_length": str(parameters.context_length),
    }
    count = sum(prod(shape) for shape in parameters.shapes.values())
    with click.progressbar(length=count, label="Writing", file=sys.stderr, hidden=not sys.stderr.isatty()) as bar:
        write_model(parameters, path, bf16=bf16, metadata=facts, advance=bar.update)


def _check(path: Path, parameters: Parameters) -> Comparison | None:
    """Says on stderr what was found. None where ONNX Runtime is not installed."""
    from tandem.compile.onnx import check

    check.check_rules(path)
    if find_spec("onnxruntime") is None:
        click.echo("valid ONNX; logits were not compared: pip install 'tandem-llm[onnx]'", err=True)
        return None
    found = check.compare(path, parameters)
    click.echo(
        f"ONNX Runtime's logits of {found.rows} tokens are within {found.difference:.2g} of the definitions', which "
        f"reach {found.largest:.3g}",
        err=True,
    )
    return found
