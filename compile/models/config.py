"""Typed reading of a checkpoint's config: every complaint names the field, what was found and what is supported.

Knows nothing of model families.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tandem.errors import CheckpointError, CompileError


def unsupported(field: str, found: object, supported: object) -> CompileError:
    """The error for a sound config that asks for something this compiler does not do."""
    return CompileError(f"the checkpoint's config has {field} = {found!r}; supported: {supported}")


def contradiction(first: str, second: str, why: str = "") -> CheckpointError:
    """The error for two fields, each as `name = value`, that cannot both be meant."""
    return CheckpointError(
        f"the checkpoint's config has {first} and {second}{why and ', ' + why}; correct the one that is not meant"
    )


class Config:
    """A config, or a dictionary inside one, whose fields are read by name. null counts as absent."""

    def __init__(self, fields: Mapping[str, Any], path: str = "") -> None:
        self.fields, self.path = fields, path

    def __contains__(self, name: str) -> bool:
        return self.fields.get(name) is not None

    def full_name(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name

    def get(self, name: str, default: Any = None) -> Any:
        value = self.fields.get(name)
        return default if value is None else value

    def size(self, name: str, default: int | None = None) -> int:
        """A positive whole number. CheckpointError if it is missing without a default, or something else."""
        value = self._required(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self._wrong(name, value, "a positive whole number")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A positive finite number."""
        value = self._required(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
            raise self._wrong(name, value, "a positive number")
        return float(value)

    def optional_number(self, name: str) -> float | None:
        return self.number(name) if name in self else None

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.get(name, default)
        if not isinstance(value, bool):
            raise self._wrong(name, value, "true or false")
        return value

    def section(self, name: str) -> Config:
        """The dictionary under `name`; empty if absent."""
        value = self.get(name, {})
        if not isinstance(value, Mapping):
            raise self._wrong(name, value, "a dictionary")
        return Config(value, self.full_name(name))

    def only(self, name: str, *supported: Any) -> None:
        """CompileError unless the field is absent or one of `supported`."""
        if name in self and self.fields[name] not in supported:
            raise unsupported(self.full_name(name), self.fields[name], " or ".join(map(repr, supported)) or "absent")

    def known(self, names: Iterable[str]) -> None:
        """CompileError if a field that is not null stands outside `names`."""
        names = tuple(names)
        for name, value in self.fields.items():
            if value is not None and name not in names:
                raise unsupported(self.full_name(name), value, "only " + ", ".join(names))

    def _required(self, name: str, default: Any) -> Any:
        value = self.get(name, default)
        if value is None:
            raise CheckpointError(f"the checkpoint's config lacks {self.full_name(name)}; is it complete?")
        return value

    def _wrong(self, name: str, found: object, wanted: str) -> CheckpointError:
        return CheckpointError(f"the checkpoint's config has {self.full_name(name)} = {found!r}; wanted {wanted}")
