"""Our side: a bundle loaded as `tandem-run` loads it, and asked through its worker.

Arguments: bundle, threads of a CPU's, and further fields of `LoadOptions` as JSON. A request's `speculate` chooses
between drafts and plain decoding, `stop_ids` end it early, `temperature` and `seed` are its sampling.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from threading import Event
from typing import Any

from sides.serving import Generate, serve


class Collected:
    """A `Sink` that keeps all ids and the counts."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.stats: Any = None
        self.error: Any = None
        self.done = Event()

    def tokens(self, ids: list[int]) -> bool:
        self.ids += ids
        return False

    def finished(self, reason: Any, stats: Any, error: Any) -> None:
        self.stats, self.error = stats, error
        self.done.set()


def load() -> tuple[str, Generate]:
    from tandem import __version__
    from tandem.artifacts.reader import read_manifest
    from tandem.runtime.loading import LoadOptions, load
    from tandem.runtime.request import Request, Sampling

    bundle, more = Path(sys.argv[1]), json.loads(sys.argv[3]) if len(sys.argv) > 3 else {}
    threads = None if read_manifest(bundle).host.price.gpu else int(sys.argv[2])
    service = load(bundle, LoadOptions(threads=threads, max_num_seqs=1, **more))

    def generate(
        ids: list[int],
        num_tokens: int,
        speculate: bool = False,
        stop_ids: tuple[int, ...] = (),
        temperature: float = 0.0,
        seed: int | None = None,
    ) -> dict[str, Any]:
        sink, sampling = Collected(), Sampling(temperature, seed=seed)
        request = Request(tuple(ids), num_tokens, sampling, frozenset(stop_ids), speculate)
        service.worker.submit(request, sink)
        sink.done.wait()
        if sink.error:
            raise sink.error
        stats = sink.stats
        return {
            "ids": sink.ids,
            "prefill_ms": stats.prefill_ms,
            "decode_ms": stats.decode_ms,
            "rounds": stats.rounds,
        }

    return f"tandem {__version__}, {service.bundle_id[:12]}", generate


if __name__ == "__main__":
    serve(load)
