"""Writes a bundle's tokenizer as a Hugging Face folder, for clients that count tokens. Arguments: BUNDLE, FOLDER."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path


def write(bundle: Path, folder: Path) -> None:
    facts = json.loads((bundle / "manifest.json").read_text())["tokenizer"]
    config = {name: facts[name] for name in ("bos_token", "eos_token", "chat_template")}
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(bundle / "tokenizer.json", folder / "tokenizer.json")
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **config}))


if __name__ == "__main__":
    write(*map(Path, sys.argv[1:]))
