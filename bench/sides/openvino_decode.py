"""OpenVINO GenAI, greedy, over a folder of optimum-intel's exporter; its prefix cache is off.

Arguments: the folder, threads.
"""

from __future__ import annotations

import sys
from time import perf_counter
from typing import Any

from sides.serving import Generate, answer, serve


def load() -> tuple[str, Generate]:
    import numpy as np
    import openvino
    import openvino_genai as genai

    schedule = genai.SchedulerConfig()
    schedule.enable_prefix_caching = False
    pipeline = genai.LLMPipeline(sys.argv[1], "CPU", INFERENCE_NUM_THREADS=int(sys.argv[2]), scheduler_config=schedule)

    def generate(ids: list[int], num_tokens: int) -> dict[str, Any]:
        config = genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = num_tokens, True, False
        start = perf_counter()
        found = pipeline.generate(openvino.Tensor(np.array([ids], np.int64)), config)
        end = perf_counter()
        first = start + found.perf_metrics.get_ttft().mean / 1e3
        return answer(list(found.tokens[0]), start, first, end)

    return f"openvino-genai {genai.__version__}", generate


if __name__ == "__main__":
    serve(load)
