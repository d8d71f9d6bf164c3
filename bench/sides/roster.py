"""Who takes part: our bundles and the peers, where each of them lies, and how it is started.

`bench/peers.sh` lays the peers out; one that is not there is left out with a reason.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sides.process import Side, SideError


@dataclass(frozen=True, slots=True)
class Peer:
    """`bits` is the profile it stands against; `venv` and `model` are names in the folder of peers.

    `for_information` peers are shown, but no goal is held against them.
    """

    name: str
    bits: str
    module: str
    venv: str
    model: str
    for_information: bool = False


def _llama(kind: str, bits: str) -> Peer:
    return Peer(f"llama.cpp {kind}", bits, "sides.llama_cpp_decode", "llama", f"{kind}.gguf")


TRANSFORMERS = Peer("Transformers bf16 eager", "bf16", "sides.transformers_eager", "transformers", "bf16")
ONNXRUNTIME = Peer("onnxruntime-genai int4", "int4", "sides.onnxruntime_decode", "onnxruntime", "onnx-int4")
LLAMA = (
    _llama("BF16", "bf16"),
    _llama("F16", "bf16"),
    _llama("Q8_0", "int8"),
    _llama("Q4_1", "int4"),
    _llama("Q4_0", "int4"),
)
OPENVINO = tuple(
    Peer(f"OpenVINO GenAI {bits}", bits, "sides.openvino_decode", "openvino", f"openvino-{bits}", for_information=True)
    for bits in ("int8", "int4")
)


@dataclass(frozen=True, slots=True)
class Roster:
    """`bundles` by profile; `peers` is the folder of `bench/peers.sh`."""

    bundles: dict[str, Path]
    peers: Path
    threads: int

    def ours(self, profile: str, **options: Any) -> Side:
        """Our side of that profile; `options` are fields of `LoadOptions`.

        Raises SideError if there is no such bundle or it does not load.
        """
        if profile not in self.bundles:
            raise SideError(f"tandem {profile}: there is no bundle of this profile")
        arguments = (self.bundles[profile], self._n, json.dumps(options))
        return Side(f"tandem {profile}", Path(sys.executable), "sides.tandem_bundle", *arguments)

    def peer(self, peer: Peer) -> Side:
        """A peer. Raises SideError if it is not installed or does not start."""
        python, model = self.peers / "venvs" / peer.venv / "bin" / "python", self.peers / "models" / peer.model
        for needed in (python, model):
            if not needed.exists():
                raise SideError(f"{peer.name}: {needed} is not there; bench/peers.sh installs it")
        return Side(peer.name, python, peer.module, model, self._n, OMP_NUM_THREADS=self._n)

    @property
    def _n(self) -> str:
        return str(self.threads)


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))
