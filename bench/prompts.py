"""The benchmark's prompts as token ids: stories, chats, requests for code, and files to copy or to edit.

All texts lie in `bench/texts/`. Knows nothing of sides or figures.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

from answer import begun_again

TEXTS = Path(__file__).with_name("texts")
REQUESTS: dict[str, list] = json.loads((TEXTS / "requests.json").read_text())


@dataclass(frozen=True, slots=True)
class Prompt:
    """`stop_ids` end the answer of a chat; a text that is just gone on with has none."""

    name: str
    ids: list[int]
    stop_ids: tuple[int, ...] = ()


class Prompts:
    """Prompts for the model of a bundle, through its own tokenizer and chat template."""

    def __init__(self, bundle: Path) -> None:
        from tandem.artifacts.reader import open_bundle
        from tandem.runtime.chat import ChatTemplate
        from tandem.runtime.loading import read_tokenizer

        opened = open_bundle(bundle)
        facts = opened.manifest.tokenizer
        self._tokenizer = read_tokenizer(opened.tokenizer_path)
        self._template = ChatTemplate(facts.chat_template, {"bos_token": facts.bos_token, "eos_token": facts.eos_token})
        self._stop_ids = facts.stop_ids

    def prose(self) -> list[Prompt]:
        """First words of texts, to be gone on with past any end."""
        return [Prompt(f"prose {i}", self._encode(text)) for i, text in enumerate(REQUESTS["prose"], 1)]

    def chats(self) -> list[Prompt]:
        return [self._turn(f"chat {i}", text) for i, text in enumerate(REQUESTS["chat"], 1)]

    def code(self) -> list[Prompt]:
        return [self._turn(f"code {i}", text) for i, text in enumerate(REQUESTS["code"], 1)]

    def edits(self) -> list[Prompt]:
        """A file of 60 lines and what to change in it."""
        asked = "Here is a file:\n\n{}\nRewrite this file, but {}. Keep everything else as it is."
        return [
            self._turn(f"edit {i}, {file}", asked.format((TEXTS / file).read_text(), wish))
            for i, (file, wish) in enumerate(REQUESTS["edits"], 1)
        ]

    def copy(self) -> Prompt:
        """A source file, then its first lines once more, to be gone on with."""
        return Prompt("copy", self._encode(begun_again()))

    def behind(self, prompt: Prompt, num_tokens: int, files: list[str]) -> Prompt:
        """`prompt` behind that many tokens of `files`, which have nothing to do with it."""
        ids: list[int] = []
        for text in files:
            if len(ids) < num_tokens:
                ids += self._encode(f"{text}\n\n")
        assert len(ids) >= num_tokens
        return replace(prompt, ids=ids[:num_tokens] + prompt.ids)

    def long(self, num_tokens: int) -> Prompt:
        """That many tokens of plain text: the files one after the other."""
        ids = self._encode("\n\n".join(path.read_text() for path in sorted(TEXTS.glob("*.txt"))))
        assert len(ids) >= num_tokens
        return Prompt(f"{num_tokens} tokens", ids[:num_tokens])

    def _turn(self, name: str, text: str) -> Prompt:
        rendered = self._template.render([{"role": "user", "content": text}])
        return Prompt(name, self._encode(rendered), self._stop_ids)

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False).ids
