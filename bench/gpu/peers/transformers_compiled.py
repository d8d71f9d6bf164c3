"""Transformers with `torch.compile(mode="reduce-overhead")` and a static cache, greedy, random weights made in place.

A process of its own: `python3 -m bench.gpu.peers.transformers_compiled --shape dense27b`. Prints one JSON object.
The token stays on the device between steps, which no server could do: the peer at its best.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import replace
from typing import Any

from bench.gpu.shapes import SHAPES, HybridShape, Shape
from spread import Spread

DENSE = [name for name, shape in SHAPES.items() if not isinstance(shape, HybridShape)]


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=DENSE, required=True)
    parser.add_argument("--layers", type=int, help="fewer layers, for a try")
    parser.add_argument("--context", type=int, default=1024, help="tokens before the first decoded one")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of a run")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    shape = SHAPES[options.shape]
    if options.layers:
        shape = replace(shape, num_hidden_layers=options.layers)
    print(json.dumps(measure(shape, options)))
    return 0


def measure(shape: Shape, options: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds a token of every run, and what ran."""
    import torch
    import transformers

    torch.manual_seed(0)
    model = make_model(shape, options.device)
    with torch.no_grad():
        decode = Decoder(model, options.context, options.tokens, options.device)
        decode.run(4)  # compiles
        decode.run(4)  # captures
        runs = [decode.run(options.tokens) for _ in range(options.repeats + 1)][1:]
    return {
        "versions": f"transformers {transformers.__version__}, torch {torch.__version__}",
        "shape": shape.name,
        "context": options.context,
        "tokens": options.tokens,
        "ms": Spread.of(runs).record(),
    }


def make_model(shape: Shape, device: str) -> Any:
    """A decoder of `shape` in bf16 with random weights. Of Mistral's class: Llama's refuses 24 heads at 5,120.

    Without a sliding window both are the same computation.
    """
    import torch
    from transformers import AutoModelForCausalLM, MistralConfig

    wanted = {name: value for name, value in shape.config().items() if name not in _NOT_MISTRAL}
    theta = {"rope_type": "default", "rope_theta": shape.rope_theta}
    config = MistralConfig(**wanted, rope_parameters=theta, sliding_window=None)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation="sdpa").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, parameter.shape[-1] ** -0.5)
    return model


class Decoder:
    """Greedy decoding behind a prompt of `context` tokens; every run starts there again."""

    def __init__(self, model: Any, context: int, tokens: int, device: str) -> None:
        import torch
        from transformers import StaticCache

        self._context, self._device = context, device
        self._cache = StaticCache(config=model.config, max_cache_len=context + tokens)
        prompt = torch.randint(model.config.vocab_size, (1, context), device=device)
        # The prompt's pass also makes the cache, at addresses that stay.
        out = model(prompt, past_key_values=self._cache, logits_to_keep=1)
        self._first = out.logits[:, -1:].argmax(-1)
        self._token, self._position = self._first.clone(), torch.empty((1, 1), dtype=torch.long, device=device)

        def step(token: Any, position: Any) -> Any:
            out = model(token, position_ids=position, past_key_values=self._cache)
            return out.logits[:, -1:].argmax(-1)

        mode = "reduce-overhead" if device == "cuda" else "default"
        self._step = torch.compile(step, mode=mode, fullgraph=True)

    def run(self, tokens: int) -> float:
        """Milliseconds a token."""
        self._token.copy_(self._first)
        self._position.fill_(self._context)
        for layer in self._cache.layers:
            layer.cumulative_length.fill_(self._context)
        self._wait()
        began = time.perf_counter()
        for _ in range(tokens):
            self._token.copy_(self._step(self._token, self._position))
            self._position.add_(1)
        self._wait()
        return 1e3 * (time.perf_counter() - began) / tokens

    def _wait(self) -> None:
        import torch

        if self._device == "cuda":
            torch.cuda.synchronize()


_NOT_MISTRAL = ("architectures", "model_type", "rope_theta", "torch_dtype")


if __name__ == "__main__":
    sys.exit(main())
