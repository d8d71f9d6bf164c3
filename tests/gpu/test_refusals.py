"""Bad bundles and bad machines, on a real driver: a clear line before any kernel runs, and no hang."""

from __future__ import annotations

import json
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tandem.gpu import gpus
from tests.commands import Commands, Done

ASK = ("--prompt", "one two three", "--raw", "--max-tokens", "8", "--json")


def ask(commands: Commands, bundle: Path, *flags: str, **changes: str) -> Done:
    return commands.run("runtime.cli", str(bundle), *ASK, *flags, **changes)


def refused(done: Done, *words: str) -> None:
    assert done.code not in (0, -11), done.stderr
    assert "Traceback" not in done.stderr
    assert [word for word in words if word.lower() not in done.said.lower()] == [], done.said


@pytest.fixture
def copy(bundles: dict[str, Path], tmp_path: Path) -> Path:
    """A bundle that may be damaged."""
    place = shutil.copytree(bundles["bf16"], tmp_path / "copy")
    for path in place.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return place


def flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 0x10
    path.write_bytes(data)


def test_a_flipped_byte_of_a_cubin_is_named(commands: Commands, copy: Path) -> None:
    cubin = min(copy.glob("kernels/*.cubin"))
    flip(cubin, cubin.stat().st_size // 2)
    refused(ask(commands, copy), cubin.name)


def test_a_flipped_byte_of_a_program_is_named(commands: Commands, copy: Path) -> None:
    program = min(path for path in (copy / "programs").rglob("*") if path.is_file())
    flip(program, program.stat().st_size // 2)
    refused(ask(commands, copy), program.name)


def test_a_cubin_that_is_missing_is_named(commands: Commands, copy: Path) -> None:
    cubin = min(copy.glob("kernels/*.cubin"))
    cubin.unlink()
    refused(ask(commands, copy), cubin.name)


def test_without_a_visible_gpu_that_is_said(commands: Commands, bundles: dict[str, Path]) -> None:
    refused(ask(commands, bundles["bf16"], CUDA_VISIBLE_DEVICES=""), "gpu")


def test_too_little_memory_says_how_much_is_needed_and_for_what(commands: Commands, bundles: dict[str, Path]) -> None:
    refused(ask(commands, bundles["bf16"], "--gpu-memory-utilization", "0.0005"), "GiB", "weights", "KV")


def test_a_gpu_may_be_named_by_its_uuid(commands: Commands, bundles: dict[str, Path]) -> None:
    done = ask(commands, bundles["bf16"], CUDA_VISIBLE_DEVICES=f"GPU-{gpus()[0].uuid}")
    assert done.code == 0, done.stderr


def test_two_processes_share_a_gpu(commands: Commands, bundles: dict[str, Path]) -> None:
    small = ("--gpu-memory-utilization", "0.2")
    with ThreadPoolExecutor(2) as pool:
        done = list(pool.map(lambda _: ask(commands, bundles["bf16"], *small), range(2)))
    assert [one.code for one in done] == [0, 0], done[0].stderr + done[1].stderr
    first, second = (json.loads(one.stdout)["ids"] for one in done)
    assert first == second


def test_memory_that_others_hold_is_said_to_be_theirs(commands: Commands, bundles: dict[str, Path]) -> None:
    code = "import sys, torch; free, _ = torch.cuda.mem_get_info(); x = torch.empty(free - (1000 << 20), "
    code += "dtype=torch.uint8, device='cuda'); print('held', flush=True); sys.stdin.read()"
    words = [*commands.words("runtime.cli")[:2], "-c", code]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=commands.environment()
    ) as other:
        try:
            assert other.stdout and other.stdout.readline() == "held\n"
            refused(ask(commands, bundles["bf16"]), "free", "GiB")
        finally:
            other.kill()
