"""Transformers, eager, greedy, with its own cache: a bare loop over the model's forward, so that no time goes to
`generate`'s own bookkeeping.

Arguments: a Hugging Face folder, threads, a dtype of torch (default: bfloat16).
"""

from __future__ import annotations

import sys
from time import perf_counter
from typing import Any

from sides.serving import Generate, answer, serve


def load() -> tuple[str, Generate]:
    import torch
    import transformers
    from transformers import AutoModelForCausalLM, DynamicCache

    torch.set_num_threads(int(sys.argv[2]))
    dtype = getattr(torch, sys.argv[3]) if len(sys.argv) > 3 else torch.bfloat16
    model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=dtype, attn_implementation="eager").eval()
    assert {weight.dtype for weight in model.parameters()} == {dtype}
    assert all(type(layer.mlp.up_proj) is torch.nn.Linear for layer in model.model.layers)

    @torch.inference_mode()
    def generate(ids: list[int], num_tokens: int) -> dict[str, Any]:
        cache, tokens = DynamicCache(config=model.config), list[int]()
        start = perf_counter()
        out = model(torch.tensor([ids]), past_key_values=cache, logits_to_keep=1)
        tokens.append(int(out.logits[0, -1].argmax()))
        first = perf_counter()
        for _ in range(num_tokens - 1):
            out = model(torch.tensor([tokens[-1:]]), past_key_values=cache)
            tokens.append(int(out.logits[0, -1].argmax()))
        return answer(tokens, start, first, perf_counter())

    return f"transformers {transformers.__version__}, torch {torch.__version__}", generate


if __name__ == "__main__":
    serve(load)
