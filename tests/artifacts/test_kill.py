"""`kill -9` at every step of a signature: the bundle stays whole, and the next run sweeps and signs."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tandem.artifacts import layout
from tandem.artifacts.reader import open_bundle
from tandem.artifacts.signing import sign
from tests.artifacts import sample
from tests.artifacts.keys import write_pair
from tests.children import environment

KILLED = """
import os, signal, sys
from pathlib import Path
from tandem.artifacts import signing, staging

def kill(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

module, name = {step!r}.rsplit(".", 1)
owner = {{"signing": signing, "staging": staging, "os": os, "shutil": signing.shutil}}[module]
setattr(owner, name, kill)
signing.sign(Path(sys.argv[1]), Path(sys.argv[2]))
"""


@pytest.mark.parametrize("step", ["signing._make", "signing._check", "staging.sync", "os.replace", "shutil.rmtree"])
def test_a_killed_signature(tmp_path: Path, step: str) -> None:
    bundle = tmp_path / "here" / "tiny"
    sample.write(bundle)
    key = write_pair(tmp_path, "mine")[0]
    command = [sys.executable, "-c", KILLED.format(step=step), str(bundle), str(key)]
    assert subprocess.run(command, env=environment()).returncode == -signal.SIGKILL
    open_bundle(bundle, verify="digests").verify()
    assert (bundle / layout.SIGNATURE).exists() == (step == "shutil.rmtree")
    left = [path.name for path in bundle.parent.iterdir() if path != bundle]
    assert len(left) == 1 and left[0].startswith(".tiny.partial-")
    sign(bundle, key)
    assert (bundle / layout.SIGNATURE).is_file() and list(bundle.parent.iterdir()) == [bundle]
