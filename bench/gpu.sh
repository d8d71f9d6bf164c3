#!/usr/bin/env bash
# Everything that needs a GPU, on one: tests, then figures, the table last.
#
#   bench/gpu.sh [STEP...]     steps: tests, bundles, smollm2, dense27b, peers, hybrid27b, demo-hybrid, drafters, cells;
#                              without any: all
#
# Run from anywhere with the packages of `tandem-llm[compile,dev]` importable (PYTHONPATH is kept). It takes:
#   SMOLLM2      a checkpoint to compile (a folder, a GGUF); default: random weights of its shape
#   OUT          a folder for logs, JSON and Markdown; default: .demo/gpu
#   BUNDLES      a folder for the bundles, 55 GB; default: /dev/shm/tandem, made larger if it may be
#   LAYERS       fewer layers of the large shapes, for a try
#   DRAFTER      what drafts along with hybrid27b, of random weights: none, mtp or block; default: none
#   MAX_SEQ_LEN  tokens of context of the large shapes; default 32768, and less compiles faster
#   CONTEXTS     tokens before the prompts of `cells`; default: "0 1500 6500"
#   ONLY         figures to take, by commas; default: those of the step
#   TESTS        tests to run; default: tests/gpu
#   LIMIT        seconds that a step may take altogether, compiling included; default 1200
# A bundle that is there is taken as it is. Each command says how long it took, and one that fails stops no other; what a
# step has no time for any more is left out. The exit code is 1 if one failed or was left out.
set -uo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
OUT=${OUT:-.demo/gpu}
BUNDLES=${BUNDLES:-/dev/shm/tandem}
LIMIT=${LIMIT:-1200}
DRAFTER=${DRAFTER:-none}
MAX_SEQ_LEN=${MAX_SEQ_LEN:-32768}
PYTHON=${PYTHON:-python3}
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=false
mkdir -p "$OUT" "$BUNDLES"
FAILED=0
BEGAN=0 # when the step did

run() { # NAME COMMAND...: its output, its time, and its name if it fails or the step's time is over
  local name=$1 began=$SECONDS left=$((LIMIT - SECONDS + BEGAN))
  shift
  if [ "$left" -lt 5 ]; then
    echo "== $name: LEFT OUT, no time is left of $LIMIT s"
    FAILED=1
    return
  fi
  echo "== $name"
  if timeout --foreground -k 10 "$left" "$@" 2>&1 | tee "$OUT/$name.log"; then
    echo "== $name: $((SECONDS - began)) s"
  else
    echo "== $name: FAILED after $((SECONDS - began)) s"
    FAILED=1
  fi
}

tandem() { # NAME PROGRAM ARGUMENTS...: `run` of one of Tandem's commands, installed or not
  local name=$1 program=$2
  shift 2
  run "$name" "$PYTHON" -c "import sys; from tandem.$program import main; sys.exit(main())" "$@"
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
  local more=()
  [ "$1" = smollm2 ] || [ -z "${LAYERS:-}" ] || more+=(--layers "$LAYERS")
  [ "$1" != hybrid27b ] || more+=(--drafter "$DRAFTER")
  if [ "$1" = smollm2 ] && [ -n "${SMOLLM2:-}" ]; then
    compiled "$1" "$SMOLLM2" --name smollm2 --max-seq-len "$2"
  else
    run "compile-$1" "$PYTHON" -m bench.gpu.dense27b --shape "$1" --max-seq-len "$2" -o "$BUNDLES/$1" "${more[@]}"
  fi
}

compiled() { # NAME CHECKPOINT FLAGS...: the same of a checkpoint
  local name=$1
  shift
  if [ ! -f "$BUNDLES/$name/manifest.json" ]; then
    tandem "compile-$name" compile.cli "$@" --device cuda-sm90 -o "$BUNDLES/$name" -q
  fi
}

figures() { # NAME FIGURES BUNDLE-FLAGS...
  local name=$1 only=$2
  shift 2
  run "$name" "$PYTHON" -m bench.gpu.table "$@" --only "${ONLY:-$only}" --budget $((LIMIT - SECONDS + BEGAN - 5)) \
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
  bundle dense27b "$MAX_SEQ_LEN"
}

smollm2() {
  bundle smollm2 8192
  tandem spec-smollm2 runtime.checks.cli spec "$BUNDLES/smollm2" --quick
  tandem identity-smollm2 runtime.checks.cli identity "$BUNDLES/smollm2" "$BUNDLES/smollm2"
  tandem sampled-smollm2 runtime.checks.cli sampled "$BUNDLES/smollm2" --quick
  figures smollm2 gap-smollm2,sampled-smollm2 --smollm2 "$BUNDLES/smollm2"
}

dense27b() {
  room 110
  bundle dense27b "$MAX_SEQ_LEN"
  figures dense27b step,gap-dense27b,verify,prefill,replay,arithmetic,restore,memory,start --dense27b "$BUNDLES/dense27b"
}

hybrid27b() { # 54 GB beside what lies there; its figures first, since checks of so large a model take long
  room 110
  bundle hybrid27b "$MAX_SEQ_LEN"
  local single=hybrid-step,hybrid-verify,hybrid-commit,hybrid-recurrence,hybrid-prefill-4k,hybrid-replay
  figures hybrid27b "$single,hybrid-forced,hybrid-restore,hybrid-memory,hybrid-start" --hybrid27b "$BUNDLES/hybrid27b"
  tandem spec-hybrid27b runtime.checks.cli spec "$BUNDLES/hybrid27b" --quick
}

demo-hybrid() { # real text: a check of every bit, 200,000 greedy tokens: those by LIMIT count later
  compiled demo-hybrid bench/demo-hybrid
  tandem spec-demo-hybrid runtime.checks.cli spec "$BUNDLES/demo-hybrid" --quick
  run draft-times "$PYTHON" -m bench.gpu.draft_times "$BUNDLES/demo-hybrid"
  run drafts-demo-hybrid "$PYTHON" bench/hybrid.py --only drafts --bundle "$BUNDLES/demo-hybrid" \
    --json "$OUT/drafts-demo-hybrid.json"
  run exact-demo-hybrid "$PYTHON" bench/exact.py "$BUNDLES/demo-hybrid" --journal "$OUT/exact.jsonl"
}

drafters() { # what each drafter gains on real text: SmolLM2's blocks on code, the demo hybrid's layer and blocks
  local block
  compiled demo-hybrid bench/demo-hybrid
  compiled demo-hybrid-block bench/demo-hybrid --drafter bench/drafters/demo-hybrid-b16
  for block in demo-hybrid demo-hybrid-block; do
    run "drafts-$block" "$PYTHON" bench/hybrid.py --only drafts --bundle "$BUNDLES/$block" --repeats 3 \
      --json "$OUT/drafts-$block.json"
  done
  smollm2-block || return 0
  run drafts-smollm2 "$PYTHON" bench/workloads.py --bundle "$BUNDLES/smollm2-block" --manner greedy --repeats 3 \
    --only code --only chat --only quote --json "$OUT/drafts-smollm2.json"
}

smollm2-block() { # fails where there is no checkpoint that the drafter is for
  if [ -z "${SMOLLM2:-}" ]; then
    echo "== smollm2-block: LEFT OUT, SMOLLM2 names no checkpoint"
    FAILED=1
    return 1
  fi
  compiled smollm2-block "$SMOLLM2" --name smollm2 --drafter bench/drafters/smollm2-b16 --max-seq-len 8192
}

cells() { # each workload in each class of contexts, greedy and sampled, never slower than plain
  smollm2-block || return 0
  # shellcheck disable=SC2046  # numbers, one a word
  run cells "$PYTHON" bench/workloads.py --bundle "$BUNDLES/smollm2-block" --repeats 2 --json "$OUT/cells.json" \
    --budget $((LIMIT - SECONDS + BEGAN - 20)) $(printf -- '--context %s ' ${CONTEXTS:-0 1500 6500})
}

peers() {
  bundles
  figures peers decode --smollm2 "$BUNDLES/smollm2" --dense27b "$BUNDLES/dense27b"
}

if [ $# -eq 0 ]; then
  set -- tests bundles smollm2 dense27b peers hybrid27b demo-hybrid drafters cells
fi
for step in "$@"; do
  case $step in
    tests | bundles | smollm2 | dense27b | hybrid27b | demo-hybrid | drafters | cells | peers) ;;
    *)
      known="tests, bundles, smollm2, dense27b, hybrid27b, demo-hybrid, drafters, cells and peers"
      echo "error: there is no step $step; there are $known" >&2
      exit 2
      ;;
  esac
done
nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv,noheader 2>/dev/null || echo "nvidia-smi is not there"
for step in "$@"; do
  BEGAN=$SECONDS
  "$step"
done
exit $FAILED
