"""Bundles of tiny checkpoints, each compiled once per test run by the real command.

Their native code is sealed with a key of the run's own, so that no test touches the user's. All but REAL come of a
process that need not import torch, and take the tests' library where C++ would be compiled: the same bytes, as
`tests/compile/test_build.py` holds.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.kernels.harness import LEVELS, ready_compiler
from tests.once import once, place
from tests.tiny import make_checkpoint
from tests.tiny_drafter import make_drafter
from tests.tiny_hybrid import add_mtp
from tests.warm import Process

CONTEXT_LENGTH = 256
REAL = ("qwen3", "bf16")
"""The family and profile that the installed command compiles, C++ and all."""


def state_home() -> Path:
    """The `XDG_STATE_HOME` under which these bundles count as built here."""
    return place() / "state"


@functools.cache
def compiled(
    family: str,
    profile: str,
    *,
    device: str = "cpu",
    max_seq_len: int = CONTEXT_LENGTH,
    drafter: str = "",
    **overrides: Any,
) -> Path:
    """The bundle of a tiny checkpoint of `family` (see `tests.tiny`); `drafter` is "", "mtp" or "dflash2".

    `overrides` are fields of its config.
    """
    asked = (family, profile, device, max_seq_len, drafter, sorted(overrides.items()))
    return once(repr(asked), lambda folder: _compile(folder, *asked)) / profile


def _compile(
    folder: Path,
    family: str,
    profile: str,
    device: str,
    max_seq_len: int,
    drafter: str,
    overrides: list[tuple[str, Any]],
) -> None:
    checkpoint = make_checkpoint(folder / "checkpoint", family, **dict(overrides))
    command = [str(checkpoint), "-o", str(folder / profile), "-q"]
    if drafter == "mtp":
        add_mtp(checkpoint)
    elif drafter:
        command += ["--drafter", str(make_drafter(folder / "drafter", checkpoint))]
    flags = ["--name", f"tiny-{family}", "--profile", profile, "--device", device, "--max-seq-len", str(max_seq_len)]
    environment = {**os.environ, "XDG_STATE_HOME": str(state_home())}
    if (family, profile) == REAL:
        program = str(Path(sys.executable).parent / "tandem-compile")
        done = subprocess.run([program, *command, *flags], capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr
    else:
        isa = LEVELS[0] if device == "cpu" else device.removeprefix("cpu-")
        environment["CXX"] = str(ready_compiler(folder / "c++", isa))
        process = Process([*command, *flags], folder, environment)
        errors = process.communicate()[1]
        process.close()
        assert process.returncode == 0, errors
