#!/usr/bin/env bash
# lm-eval's local-completions against a server, on a task of our own (lm-eval/facts.jsonl), beside its own backend for
# Transformers on the same weights in fp32. Arguments: URL BUNDLE. The last line says how far the two are apart.
# CHECKPOINT: those weights as a Hugging Face folder; default: the demo's, made from its GGUF.
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
checkpoint=${CHECKPOINT:-$root/.peers/models/bf16}

environment lm-eval "$TORCH" "lm-eval[api,hf]==0.4.13" transformers==5.24.0 accelerate==1.15.0 gguf==0.19.0
if [ ! -e "$checkpoint" ]; then
  mkdir -p "$(dirname "$checkpoint")"
  "$bin/python" "$root/bench/peers/dequantised.py" "$("$PYTHON" "$root/bench/smollm2.py")" "$checkpoint"
fi
export HF_DATASETS_CACHE="$out/cache"

# evaluated NAME MODEL ARGUMENTS...: its samples lie in the folder NAME.
evaluated() {
  local name=$1 model=$2
  shift 2
  rm -rf "${out:?}/$name"
  (cd "$here/lm-eval" && "$bin/lm-eval" run --model "$model" --tasks facts --include_path "$here/lm-eval" \
    --log_samples --output_path "$out/$name" "$@")
}

evaluated served local-completions --batch_size 4 --model_args \
  "model=$(served),base_url=$url/v1/completions,tokenizer_backend=huggingface,tokenizer=$(tokenizer),num_concurrent=2"
evaluated reference hf --batch_size 8 --device cpu --model_args "pretrained=$checkpoint,dtype=float32"
"$bin/python" "$here/lm-eval/compared.py" "$out/served" "$out/reference"
