#!/usr/bin/env bash
# schemathesis against a server and its OpenAPI description: no 5xx, no hang, answers as described, what the description
# forbids refused. Arguments: URL BUNDLE; the server wants a small context, for many answers go to its end.
# The last line says how it went. EXAMPLES: cases an endpoint; SEED: of the cases; KEY: the API key, if one is asked for.
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

environment schemathesis schemathesis==4.32.5 openapi-spec-validator==0.9.0
key=(${KEY:+-H "Authorization: Bearer $KEY"})
"$bin/python" - "$url/openapi.json" "${KEY:-}" > "$out/openapi.json" <<'PY'
import sys
import urllib.request

request = urllib.request.Request(sys.argv[1], headers={"authorization": f"Bearer {sys.argv[2]}"})
sys.stdout.buffer.write(urllib.request.urlopen(request, timeout=20).read())
PY
"$bin/python" -m openapi_spec_validator "$out/openapi.json"
cd "$out" # where it keeps its own
"$bin/schemathesis" --config-file "$here/schemathesis.toml" run "$url/openapi.json" "${key[@]}" \
  --max-examples "${EXAMPLES:-30}" --seed "${SEED:-1}" --request-timeout 30 --continue-on-failure |
  tee "$out/report.txt"
echo "the description is valid; $(sed -n 's/^ *\([0-9]* generated, .* passed\).*/\1/p' "$out/report.txt")"
