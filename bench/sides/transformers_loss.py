"""Transformers in fp32: nats a token of windows of ids, each read from its beginning, in float64 from the logits on.

Arguments: a Hugging Face folder, threads. Reads a JSON list of windows on stdin, writes the mean loss of each.
"""

from __future__ import annotations

import json
import sys

from sides.serving import claim_stdout


def main() -> None:
    out = claim_stdout()
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(int(sys.argv[2]))
    model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32, attn_implementation="eager").eval()
    losses = list[float]()
    with torch.inference_mode():
        for ids in json.load(sys.stdin):
            text = torch.tensor([ids])
            logits = model(text[:, :-1], use_cache=False).logits[0]
            losses.append(float(torch.nn.functional.cross_entropy(logits.double(), text[0, 1:])))
    print(json.dumps(losses), file=out, flush=True)


if __name__ == "__main__":
    main()
