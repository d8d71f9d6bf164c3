#!/usr/bin/env bash
# OpenAI's SDK against a server: sync, async, streams, errors, parse helpers, tools. Arguments: URL BUNDLE.
# The last line says how it went.
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

environment openai openai==3.57.0
"$bin/python" "$here/openai_sdk.py" "$url"
