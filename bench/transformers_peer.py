"""The other side of bench/cpu.py: Transformers, bf16, eager, greedy, with its own KV cache.

Arguments: GGUF, tokenizer.json, threads, tokens. Each line on stdin is a JSON string, the prompt; each answer is
one line, tokens a second of decoding after the prefill. A bare loop over the model's forward, so that no time goes
to `generate`'s own bookkeeping.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from time import perf_counter

import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, DynamicCache, GgufConfig, PreTrainedModel
from transformers.utils.logging import disable_progress_bar


def main(gguf: Path, tokenizer: Path, threads: int, num_tokens: int) -> None:
    """Serves until stdin closes."""
    torch.set_num_threads(threads)
    disable_progress_bar()
    model = load(gguf.resolve())
    encode = Tokenizer.from_file(str(tokenizer)).encode
    for line in sys.stdin:
        ids = encode(json.loads(line), add_special_tokens=False).ids
        print(decode(model, ids, num_tokens), flush=True)


def load(gguf: Path) -> PreTrainedModel:
    """The model with every weight unpacked to bf16: the weights that the bundle was made from."""
    unpacked = GgufConfig(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent,
        gguf_file=gguf.name,
        quantization_config=unpacked,
        dtype=torch.bfloat16,
        attn_implementation="eager",
    )
    assert {weight.dtype for weight in model.parameters()} == {torch.bfloat16}
    assert all(type(layer.self_attn.q_proj) is torch.nn.Linear for layer in model.model.layers)
    return model.eval()


@torch.inference_mode()
def decode(model: PreTrainedModel, ids: list[int], num_tokens: int) -> float:
    """Tokens a second over `num_tokens` - 1 one-token steps; the first token comes out of the prefill."""
    cache = DynamicCache()
    out = model(torch.tensor([ids]), cache=cache, logits_to_keep=1)
    began = perf_counter()
    for _ in range(num_tokens - 1):
        out = model(out.logits[:, -1:].argmax(-1), cache=cache)
    return (num_tokens - 1) / (perf_counter() - began)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
