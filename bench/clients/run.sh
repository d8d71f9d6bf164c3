#!/usr/bin/env bash
# Every client against a served bundle, each in a virtual environment of its own (minutes to install, gigabytes).
#
#   bench/clients/run.sh [BUNDLE [CLIENT...]]     default: .demo/smollm2-bf16, and all of them
#
# Prints a table at the end; logs and reports lie in .demo/clients. Exit code 1 if one fails.
# TANDEM: the Python that Tandem is installed in; default: .venv's. PYTHON: the one that makes the environments.
set -uo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
bundle=${1:-$root/.demo/smollm2-bf16}
shift || true
[ $# -gt 0 ] || set -- openai schemathesis lm-eval guidellm aiperf
TANDEM=${TANDEM:-$root/.venv/bin/python}
OUT=${OUT:-$root/.demo/clients}
mkdir -p "$OUT"
OUT=$(cd "$OUT" && pwd)
export OUT
server=
trap '[ -z "$server" ] || kill "$server"' EXIT

# serve OPTION...: a server of the bundle on a free port; sets `server` and `url`.
serve() {
  local log=$OUT/server.log
  : > "$log"
  PYTHONPATH=$root "$TANDEM" -c 'from tandem.runtime.cli import main; main()' "$bundle" --port 0 "$@" > "$log" 2>&1 &
  server=$!
  until url=$(sed -n 's/^listening on //p' "$log") && [ -n "$url" ]; do
    kill -0 "$server" || { cat "$log" >&2; server=; exit 1; }
    sleep 0.2
  done
}

stop() {
  kill "$server"
  wait "$server" || echo "the server ended with $?: $OUT/server.log" >&2
  server=
}

failed=0 table=()
for client in "$@"; do
  [ -x "$here/$client.sh" ] || { echo "error: no client is called $client" >&2; exit 2; }
  if [ "$client" = schemathesis ]; then
    # Many of its requests are answered to the end of the context; and it looks for ways around the key.
    serve --max-model-len 96 --api-key key
  else
    serve
  fi
  echo "== $client against $url" >&2
  KEY=key "$here/$client.sh" "$url" "$bundle" > "$OUT/$client.log" 2>&1
  code=$?
  [ $code -eq 0 ] || failed=1
  table+=("$(printf '%-14s %-7s %s' "$client" "$([ $code -eq 0 ] && echo ok || echo FAILED)" "$(tail -n 1 "$OUT/$client.log")")")
  stop
done
printf '%s\n' "${table[@]}"
exit $failed
