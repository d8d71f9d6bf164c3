# Sourced by the clients' scripts: virtual environments, folders, the server's address. Arguments of each: URL BUNDLE.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
url=${1:?the address of a server, as tandem-run prints it}
bundle=$(cd "${2:?the bundle that it serves}" && pwd)
root=$(cd "$here/../.." && pwd)
folder=${CLIENTS:-$root/.peers/clients}
out=${OUT:-$root/.demo/clients}/$(basename "$0" .sh)
PYTHON=${PYTHON:-python3}
TORCH=${TORCH:-torch==2.13.0}
mkdir -p "$folder" "$out"
folder=$(cd "$folder" && pwd)

# The current folder may hold packages under generic names: keep it off sys.path.
export PYTHONSAFEPATH=1 PIP_DISABLE_PIP_VERSION_CHECK=1 TOKENIZERS_PARALLELISM=false
# Nothing is fetched from a hub: what a client needs comes from the bundle.
export HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1 HF_HUB_DISABLE_TELEMETRY=1

# environment NAME PACKAGE...: a virtual environment with these packages, stamped once it is complete; sets `bin`.
environment() {
  local venv=$folder/$1 stamp
  shift
  bin=$venv/bin
  stamp=$venv/.complete-$(echo "$*" | cksum | cut -d' ' -f1)
  [ -e "$stamp" ] && return
  echo "installing $*" >&2
  "$PYTHON" -m venv "$venv"
  "$bin/python" -m pip install --quiet "$@"
  touch "$stamp"
}

# The name of the model that is served.
served() {
  "$bin/python" -c 'import json, sys, urllib.request as r; print(json.load(r.urlopen(sys.argv[1]))["data"][0]["id"])' \
    "$url/v1/models"
}

# Clients that count tokens want a Hugging Face folder; this one is made of the bundle's own tokenizer.
tokenizer() {
  "$bin/python" "$here/tokenizer.py" "$bundle" "$out/tokenizer"
  echo "$out/tokenizer"
}
