"""onnxruntime-genai, greedy, over a folder of its own model builder.

Arguments: the folder, threads.
"""

from __future__ import annotations

import json
import sys
from time import perf_counter
from typing import Any

from sides.serving import Generate, answer, serve

NEVER_SAID = 16
"""An unused special token of the vocabulary stands for the end, so that the text goes on as on every other side."""


def load() -> tuple[str, Generate]:
    import onnxruntime_genai as genai

    config = genai.Config(sys.argv[1])
    threads = {"intra_op_num_threads": int(sys.argv[2])}
    config.overlay(json.dumps({"model": {"eos_token_id": NEVER_SAID, "decoder": {"session_options": threads}}}))
    model = genai.Model(config)

    def generate(ids: list[int], num_tokens: int) -> dict[str, Any]:
        params = genai.GeneratorParams(model)
        params.set_search_options(do_sample=False, max_length=len(ids) + num_tokens)
        start = perf_counter()
        generator = genai.Generator(model, params)
        generator.append_tokens(ids)
        generator.generate_next_token()
        first = perf_counter()
        for _ in range(num_tokens - 1):
            generator.generate_next_token()
        end = perf_counter()
        return answer([int(token) for token in generator.get_sequence(0)[len(ids) :]], start, first, end)

    return f"onnxruntime-genai {genai.__version__}", generate


if __name__ == "__main__":
    serve(load)
