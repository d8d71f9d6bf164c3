#!/usr/bin/env bash
# Everything that needs a GPU, on one: tests, then figures, the table last.
#
#   bench/gpu.sh [STEP...]     steps: tests, bundles, smollm2, dense27b, peers, hybrid27b, demo-hybrid; without any: all
#
# Run from anywhere with the packages of `tandem-llm[compile,dev]` importable (PYTHONPATH is kept). It takes:
#   SMOLLM2      a checkpoint to compile (a folder, a GGUF); default: random weights of its shape
#   OUT          a folder for logs, JSON and Markdown; default: .demo/gpu
#   BUNDLES      a folder for the bundles, 55 GB; default: /dev/shm/tandem, made larger if it may be
#   LAYERS       fewer layers of the large shapes, for a try
#   ONLY         figures to take, by commas; default: those of the step
#   TESTS        tests to run; default: tests/gpu
#   LIMIT        seconds that a step's figures may take together; default 540
# Each step says how long it took and goes on after a failure; the exit code is 1 if one failed.
set -uo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
OUT=${OUT:-.demo/gpu}
BUNDLES=${BUNDLES:-/dev/shm/tandem}
LIMIT=${LIMIT:-540}
PYTHON=${PYTHON:-python3}
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=false
mkdir -p "$OUT" "$BUNDLES"
FAILED=0

run() { # NAME COMMAND...: its output, its time, and its name if it fails
  local name=$1 began=$SECONDS
  shift
  echo "== $name"
  if "$@" 2>&1 | tee "$OUT/$name.log"; then
    echo "== $name: $((SECONDS - began)) s"
  else
    echo "== $name: FAILED after $((SECONDS - began)) s"
    FAILED=1
  fi
}

tandem() { # PROGRAM ARGUMENTS...: one of Tandem's commands, installed or not
  local program=$1
  shift
  "$PYTHON" -c "import sys; from tandem.$program import main; main()" "$@"
}

room() { # GB: a folder in memory holds only what its file system is allowed to
  case $BUNDLES in
    /dev/shm/*) mount -o "remount,size=$1g" /dev/shm 2>/dev/null || true ;;
  esac
}

bundle() { # SHAPE MAX_SEQ_LEN: compiles it unless it is there
  if [ -f "$BUNDLES/$1/manifest.json" ]; then
    return 0
  fi
  if [ "$1" = smollm2 ] && [ -n "${SMOLLM2:-}" ]; then
    run "compile-$1" tandem compile.cli "$SMOLLM2" --name smollm2 --device cuda-sm90 --max-seq-len "$2" -o "$BUNDLES/$1" -q
  else
    run "compile-$1" "$PYTHON" -m bench.gpu.dense27b --shape "$1" --max-seq-len "$2" -o "$BUNDLES/$1" \
      $([ "$1" != smollm2 ] && [ -n "${LAYERS:-}" ] && echo --layers "$LAYERS")
  fi
}

figures() { # NAME FIGURES BUNDLE-FLAGS...
  local name=$1 only=$2
  shift 2
  run "$name" "$PYTHON" -m bench.gpu.table "$@" --only "${ONLY:-$only}" --budget "$LIMIT" \
    ${LAYERS:+--layers "$LAYERS"} --json "$OUT/$name.json" --markdown "$OUT/$name.md"
}

tests() { # first what the others stand on; warnings are shown, not raised: the libraries here are the machine's own
  run driver "$PYTHON" -m bench.gpu.driver_smoke
  run capture "$PYTHON" -m bench.gpu.capture_smoke
  run tests "$PYTHON" -m pytest ${TESTS:-tests/gpu} -q -m gpu -W default -p no:cacheprovider --timeout 300
}

bundles() { # those that later steps compile where they are missing
  room 110
  bundle smollm2 8192
  bundle dense27b 32768
}

smollm2() {
  bundle smollm2 8192
  run spec-smollm2 tandem runtime.checks.cli spec "$BUNDLES/smollm2" --quick
  run identity-smollm2 tandem runtime.checks.cli identity "$BUNDLES/smollm2" "$BUNDLES/smollm2"
  run sampled-smollm2 tandem runtime.checks.cli sampled "$BUNDLES/smollm2" --quick
  figures smollm2 gap-smollm2,sampled-smollm2 --smollm2 "$BUNDLES/smollm2"
}

dense27b() {
  room 110
  bundle dense27b 32768
  figures dense27b step,gap-dense27b,verify,prefill,replay,arithmetic,restore,memory,start --dense27b "$BUNDLES/dense27b"
}

hybrid27b() { # 54 GB beside what lies there
  room 110
  bundle hybrid27b 32768
  run spec-hybrid27b tandem runtime.checks.cli spec "$BUNDLES/hybrid27b" --quick
  figures hybrid27b hybrid --hybrid27b "$BUNDLES/hybrid27b"
}

demo-hybrid() { # real text: a check of every bit, each drafter's rate, 200,000 greedy tokens: those by LIMIT count later
  if [ ! -f "$BUNDLES/demo-hybrid/manifest.json" ]; then
    run compile-demo-hybrid tandem compile.cli bench/demo-hybrid --device cuda-sm90 -o "$BUNDLES/demo-hybrid" -q
  fi
  run spec-demo-hybrid tandem runtime.checks.cli spec "$BUNDLES/demo-hybrid" --quick
  run draft-times "$PYTHON" -m bench.gpu.draft_times "$BUNDLES/demo-hybrid"
  run drafts-demo-hybrid timeout "$LIMIT" "$PYTHON" bench/hybrid.py --only drafts --bundle "$BUNDLES/demo-hybrid" \
    --json "$OUT/drafts-demo-hybrid.json"
  run exact-demo-hybrid timeout "$LIMIT" "$PYTHON" bench/exact.py "$BUNDLES/demo-hybrid" --journal "$OUT/exact.jsonl"
}

peers() {
  bundles
  figures peers decode --smollm2 "$BUNDLES/smollm2" --dense27b "$BUNDLES/dense27b"
}

if [ $# -eq 0 ]; then
  set -- tests bundles smollm2 dense27b peers hybrid27b demo-hybrid
fi
for step in "$@"; do
  case $step in
    tests | bundles | smollm2 | dense27b | hybrid27b | demo-hybrid | peers) ;;
    *)
      echo "error: there is no step $step; there are tests, bundles, smollm2, dense27b, hybrid27b, demo-hybrid and peers" >&2
      exit 2
      ;;
  esac
done
nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv,noheader 2>/dev/null || echo "nvidia-smi is not there"
for step in "$@"; do
  "$step"
done
exit $FAILED
