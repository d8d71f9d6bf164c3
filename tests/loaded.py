"""A fake bundle with the scripted executor where native code would be, for tests of loading.

Knows nothing of what is tested.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tandem.artifacts import reader
from tandem.runtime import loading
from tests.artifacts.corpora import TOKENIZER
from tests.fakes import ScriptedExecutor, geometry
from tests.service import IM_END, TEMPLATE, byte_tokenizer

CAPACITIES = geometry(context_length=128, vocab_size=258, max_lanes=2)


def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Replaces the opened bundle; keeps the keywords its executor is made with."""
    made: list[dict[str, Any]] = []
    path = tmp_path / "tokenizer.json"
    byte_tokenizer().save(str(path))
    facts = SimpleNamespace(chat_template=TEMPLATE, bos_token="<|im_start|>", eos_token=None, stop_ids=(IM_END,))
    files = [SimpleNamespace(path="tokenizer.json", sha256=TOKENIZER)]
    manifest = SimpleNamespace(name="tiny", content_id="ab" * 32, tokenizer=facts, files=files)
    opened = SimpleNamespace(
        manifest=manifest,
        on_gpu=False,
        geometry=CAPACITIES,
        tokenizer_path=path,
        prices={},
        json=lambda name: {},
        fit=lambda: SimpleNamespace(reasons=()),
    )

    def open_executor(bundle: object, **options: Any) -> ScriptedExecutor:
        made.append(options)
        return ScriptedExecutor(
            lambda ids: b"0123456789"[len(ids) % 10], capacities=CAPACITIES, num_pages=options["num_pages"]
        )

    monkeypatch.setattr(reader, "open_bundle", lambda path, **options: opened)
    monkeypatch.setattr(loading, "open_executor", open_executor)
    return made
