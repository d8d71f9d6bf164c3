"""llama.cpp through llama-cpp-python's low-level calls: `llama_decode` and an argmax, nothing between them.

Arguments: GGUF, threads.
"""

from __future__ import annotations

import sys
from time import perf_counter
from typing import Any

from sides.serving import Generate, answer, serve

CONTEXT = 4096


def load() -> tuple[str, Generate]:
    import llama_cpp as llama
    import numpy as np

    llama.llama_backend_init()
    model = llama.llama_model_load_from_file(sys.argv[1].encode(), llama.llama_model_default_params())
    if not model:
        raise SystemExit(f"{sys.argv[1]}: llama.cpp cannot load it")
    params = llama.llama_context_default_params()
    params.n_ctx = CONTEXT
    params.n_batch, params.n_ubatch = CONTEXT, 512
    params.n_threads = params.n_threads_batch = int(sys.argv[2])
    context = llama.llama_init_from_model(model, params)
    memory = llama.llama_get_memory(context)
    vocab_size = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))

    def step(ids: list[int]) -> int:
        batch = (llama.llama_token * len(ids))(*ids)
        if code := llama.llama_decode(context, llama.llama_batch_get_one(batch, len(ids))):
            raise SystemExit(f"llama_decode answered {code}")
        logits = llama.llama_get_logits_ith(context, -1)
        return int(np.ctypeslib.as_array(logits, (vocab_size,)).argmax())

    def generate(ids: list[int], num_tokens: int) -> dict[str, Any]:
        llama.llama_memory_clear(memory, True)
        start = perf_counter()
        tokens = [step(ids)]
        first = perf_counter()
        for _ in range(num_tokens - 1):
            tokens.append(step(tokens[-1:]))
        return answer(tokens, start, first, perf_counter())

    return f"llama-cpp-python {llama.__version__}, {llama.llama_print_system_info().decode().strip()}", generate


if __name__ == "__main__":
    serve(load)
