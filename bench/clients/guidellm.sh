#!/usr/bin/env bash
# guidellm against a server: synthetic prompts, streamed chats, a fixed length of answer. Arguments: URL BUNDLE.
# The last line says how it went. REQUESTS and STREAMS: how many, and how many at once.
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
requests=${REQUESTS:-8} streams=${STREAMS:-2}

environment guidellm "$TORCH" guidellm==0.8.1
rm -f "$out/report.json"
"$bin/guidellm" run \
  --backend "kind=openai_http,target=$url" \
  --profile "kind=concurrent,streams=$streams" \
  --constraint "kind=max_requests,count=$requests" \
  --tokenizer "kind=hf_auto,model=$(tokenizer)" \
  --data kind=synthetic_text,prompt_tokens=64,output_tokens=24 \
  --output "kind=json,path=$out/report.json" \
  --disable-progress
"$bin/python" - "$out/report.json" "$requests" <<'PY'
import json
import sys

metrics = json.load(open(sys.argv[1]))["benchmarks"][0]["metrics"]
totals, wanted = metrics["request_totals"], int(sys.argv[2])
tokens = metrics["output_token_count"]["successful"]
print(f"{totals['successful']} of {wanted} answered, {totals['errored']} errors, {tokens['mean']:g} tokens each")
sys.exit(totals["successful"] != wanted or totals["errored"] != 0 or (tokens["min"], tokens["max"]) != (24, 24))
PY
