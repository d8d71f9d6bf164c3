#!/usr/bin/env bash
# Installs what bench/cpu.py compares with, each peer in its own environment, and makes their model files from one
# GGUF. Usage: bench/peers.sh [FOLDER [PEER...]]; default: .peers, and all of them. What is there already stays.
# A peer that fails is named at the end and left out of the benchmark; the others work without it.
set -uo pipefail

bench=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
folder=${1:-$bench/../.peers}
mkdir -p "$folder/venvs" "$folder/models" || exit
folder=$(cd "$folder" && pwd)
shift || true
[ $# -gt 0 ] || set -- llama transformers onnxruntime openvino

PYTHON=${PYTHON:-python3}
TORCH=${TORCH:-torch==2.13.0}
TRANSFORMERS="transformers==5.24.0 accelerate==1.15.0 gguf==0.19.0"
ONNXRUNTIME="onnxruntime==1.32.0 onnxruntime-genai==0.18.0"
OPENVINO="openvino==2026.4.1 openvino-genai==2026.4.1.0"
# Both exporters share an environment apart from the peers, which run without torch.
EXPORT="optimum-intel==2.2.0 nncf==3.4.0 openvino==2026.4.1 openvino-tokenizers==2026.4.1.0 transformers==5.5.4
  onnx==1.23.2 onnx-ir==1.1.0 $ONNXRUNTIME"

# The current folder may hold packages under generic names: keep it off sys.path.
export PYTHONSAFEPATH=1 PIP_DISABLE_PIP_VERSION_CHECK=1

# environment NAME PACKAGE...: a virtual environment with these packages, stamped once it is complete.
environment() {
  local venv=$folder/venvs/$1 stamp
  shift
  stamp=$venv/.complete-$(echo "$*" | cksum | cut -d' ' -f1)
  [ -e "$stamp" ] && return
  echo "installing $*" >&2
  "$PYTHON" -m venv "$venv"
  "$venv/bin/python" -m pip install --quiet "$@"
  touch "$stamp"
}

# made NAME COMMAND...: the folder models/NAME, written by the command to the path that is its last argument.
made() {
  local target=$folder/models/$1
  shift
  [ -e "$target" ] && return
  echo "making $target" >&2
  rm -rf "$target.partial"
  "$@" "$target.partial"
  mv "$target.partial" "$target"
}

gguf() { "$PYTHON" "$bench/smollm2.py"; }

# Built from source, for this very machine: minutes.
llama() {
  export CMAKE_ARGS="-DGGML_NATIVE=ON -DGGML_OPENMP=ON -DLLAVA_BUILD=OFF"
  CMAKE_BUILD_PARALLEL_LEVEL=${JOBS:-$(nproc)} environment llama --no-binary llama-cpp-python llama-cpp-python==0.3.36
  "$folder/venvs/llama/bin/python" "$bench/peers/gguf_types.py" "$(gguf)" "$folder/models" BF16 F16 Q8_0 Q4_1 Q4_0
}

transformers() {
  environment transformers $TORCH $TRANSFORMERS
  made bf16 "$folder/venvs/transformers/bin/python" "$bench/peers/dequantised.py" "$(gguf)"
}

onnxruntime() {
  environment onnxruntime $ONNXRUNTIME
  [ -e "$folder/models/onnx-int4" ] && return
  exporters
  made onnx-int4 "$folder/venvs/export/bin/python" -m onnxruntime_genai.models.builder \
    -i "$folder/models/bf16" -p int4 -e cpu -c "$folder/models/onnx-cache" -o
}

openvino() {
  environment openvino $OPENVINO
  [ -e "$folder/models/openvino-int8" ] && [ -e "$folder/models/openvino-int4" ] && return
  exporters
  local export=("$folder/venvs/export/bin/optimum-cli" export openvino --task text-generation-with-past
    --model "$folder/models/bf16" --weight-format)
  made openvino-int8 "${export[@]}" int8
  made openvino-int4 "${export[@]}" int4 --group-size 32 --ratio 1.0
}

exporters() {
  transformers
  environment export $TORCH $EXPORT
  # It comes with optimum-intel, need not fit this torch, and would keep Transformers from being imported.
  "$folder/venvs/export/bin/python" -m pip uninstall --quiet --yes torchvision
}

failed=()
for peer in "$@"; do
  case $peer in llama | transformers | onnxruntime | openvino) ;; *)
    echo "error: no peer is called $peer; there are llama, transformers, onnxruntime and openvino" >&2
    exit 2
    ;;
  esac
  # Not in a condition: there, -e would be off.
  (
    set -e
    "$peer"
  )
  [ $? -eq 0 ] || failed+=("$peer")
done
[ ${#failed[@]} -eq 0 ] || echo "left out, for what stands above: ${failed[*]}" >&2
[ ${#failed[@]} -lt $# ]
