#!/usr/bin/env bash
# aiperf against a server: synthetic prompts, streamed chats, the server's own counts in every chunk, its /metrics.
# Arguments: URL BUNDLE. The last line says how it went. REQUESTS and STREAMS: how many, and how many at once.
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
requests=${REQUESTS:-8} streams=${STREAMS:-2}

environment aiperf aiperf==0.13.0
rm -f "$out"/*.json
# Offline it takes no folder for a tokenizer, only names of the hub's cache; with a folder it fetches nothing anyway.
env -u HF_HUB_OFFLINE "$bin/aiperf" profile --model "$(served)" --url "$url" --tokenizer "$(tokenizer)" \
  --endpoint-type chat --streaming --use-server-token-count --per-chunk-usage \
  --concurrency "$streams" --request-count "$requests" --num-dataset-entries "$requests" --random-seed 1 \
  --prompt-input-tokens-mean 64 --prompt-output-tokens-mean 24 --extra-inputs ignore_eos:true \
  --no-gpu-telemetry --output-artifact-dir "$out"
"$bin/python" - "$out" "$requests" <<'PY'
import json
import sys
from pathlib import Path

folder, wanted = Path(sys.argv[1]), int(sys.argv[2])
report = json.loads((folder / "profile_export_aiperf.json").read_text())
answered, errors = report["request_count"]["avg"], len(report["error_summary"])
tokens = report["usage_completion_tokens"]
scraped = (folder / "server_metrics_export.json").stat().st_size > 0
print(f"{answered:g} of {wanted} answered, {errors} errors, {tokens['avg']:g} tokens each, /metrics read: {scraped}")
sys.exit(answered != wanted or errors != 0 or (tokens["min"], tokens["max"]) != (24, 24) or not scraped)
PY
