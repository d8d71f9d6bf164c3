#!/usr/bin/env bash
# Block drafters of SmolLM2-135M-Instruct and of the demo hybrid, trained on one GPU: blocks of 8 and of 16 for each.
#
#   SMOLLM2=CHECKPOINT bench/gpu/train_drafters.sh [STEP...]     steps: hybrid-8, hybrid-16, smollm2-8, smollm2-16, small
#
# Without a step: all but `small`, which only shows in a minute that everything runs (any machine). Run from anywhere
# with the packages of `tandem-llm[compile]` importable. It takes:
#   SMOLLM2      a folder or a GGUF of SmolLM2-135M-Instruct; its steps are left out without one
#   OUT          a folder for drafters and logs; default: .demo/drafters
#   STATE        a folder for what goes on: written texts and runs; default: /dev/shm/tandem-drafters
#   MINUTES      of training for each drafter; default 12, so that with writing and replaying each takes under 20
#   STOP_AFTER   minutes after which a command saves and stops; the same call goes on. Default: never
#   TEXTS        more text beside the standard library: options of the command, as "--installed FOLDER"
# All four are 24.7 MB of weights together. Memory: 15 GB of a GPU for SmolLM2 with blocks of 16, of which the logits of
# 32 x 32 x 15 slots over 49,152 tokens are most (3.0 GB a copy in fp32, some five copies at once); the others less.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
OUT=${OUT:-.demo/drafters}
STATE=${STATE:-/dev/shm/tandem-drafters}
MINUTES=${MINUTES:-12}
STOP_AFTER=${STOP_AFTER:-1000}
PYTHON=${PYTHON:-python3}
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=false
mkdir -p "$OUT" "$STATE"

train() { # NAME TARGET OPTIONS...: a drafter, and what trees of its lattices would commit
  local name=$1 target=$2 began=$SECONDS
  shift 2
  echo "== $name"
  # shellcheck disable=SC2086  # TEXTS are words
  "$PYTHON" -m tandem.compile.train drafter --target "$target" --state "$STATE/$name" -o "$OUT/$name" \
    --stop-after "$STOP_AFTER" ${TEXTS:-} "$@" 2>&1 | tee -a "$OUT/$name.log"
  "$PYTHON" bench/drafted.py "$target" "$OUT/$name" | tee "$OUT/$name-trees.md"
  echo "== $name: $((SECONDS - began)) s"
}

hybrid() { # BLOCK: 1.7 million parameters, 3.3 MB
  train "hybrid-$1" bench/demo-hybrid --block "$1" --written "$STATE/hybrid-written" --minutes "$MINUTES" \
    --layers 1 --inner 832 --heads 5 --kv-heads 1 --taps 2,4,6 --rank 16
}

smollm2() { # BLOCK: 4.5 million parameters, 9.0 MB
  if [ -z "${SMOLLM2:-}" ]; then
    echo "== smollm2-$1: left out, SMOLLM2 names no checkpoint"
    return
  fi
  train "smollm2-$1" "$SMOLLM2" --block "$1" --written "$STATE/smollm2-written" --minutes "$MINUTES" \
    --layers 2 --inner 384 --heads 6 --kv-heads 1 --rank 8
}

small() {
  train small bench/demo-hybrid --block 8 --steps 2 --batch 1 --context 64 --blocks 4 --write-texts 2 --held-out 1 \
    --held-out-tokens 16 --layers 1 --inner 64 --package-bytes 200000
}

steps=("$@")
[ ${#steps[@]} -gt 0 ] || steps=(hybrid-8 hybrid-16 smollm2-8 smollm2-16)
for step in "${steps[@]}"; do
  case $step in
    hybrid-* | smollm2-*) "${step%-*}" "${step#*-}" ;;
    small) small ;;
    *)
      echo "no step $step: give hybrid-8, hybrid-16, smollm2-8, smollm2-16 or small" >&2
      exit 2
      ;;
  esac
done
