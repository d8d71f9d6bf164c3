"""Writes the weights of a GGUF, dequantised and rounded to bf16, as a Hugging Face folder with its tokenizer.

Arguments: GGUF, folder. Runs in Transformers' environment; a folder that is there already stays as it is.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig


def convert(source: Path, target: Path) -> None:
    """The bf16 weights that a bf16 bundle holds."""
    place, name = source.resolve().parent, source.resolve().name
    model = AutoModelForCausalLM.from_pretrained(
        place, gguf_file=name, quantization_config=GgufConfig(dequantize=True), dtype=torch.bfloat16
    )
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config  # it would be quantised when loaded
    part = target.with_suffix(".partial")
    model.save_pretrained(part)
    AutoTokenizer.from_pretrained(place, gguf_file=name).save_pretrained(part)
    part.rename(target)


if __name__ == "__main__":
    if not Path(sys.argv[2]).exists():
        convert(Path(sys.argv[1]), Path(sys.argv[2]))
