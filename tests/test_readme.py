"""README: every block of code runs, in order, as a reader would run it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
BLOCKS = BLOCK.findall((ROOT / "README.md").read_text(encoding="utf-8"))
# The two commands that set everything up are what CI itself runs, or what takes a fresh machine.
SET_UP = ["make quickstart", "make check"]


def run(command: list[str], folder: Path) -> str:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    python_path = os.pathsep.join(filter(None, [str(ROOT / "python"), os.environ.get("PYTHONPATH")]))
    env = os.environ | {"PATH": path, "PYTHONPATH": python_path, "COLUMNS": "100"}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_first_two_commands_are_in_the_menu() -> None:
    shell = [text.strip() for language, text in BLOCKS if language == "sh"]
    assert shell[:2] == SET_UP
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert {command.split()[1] for command in SET_UP} <= set(targets)


def test_ci_calls_the_second_command() -> None:
    assert SET_UP[1] in (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()


def test_every_block_runs(tmp_path: Path) -> None:
    shown = [text for language, text in BLOCKS if language == "text"]
    printed = []
    for language, text in BLOCKS:
        if language == "toml":
            (tmp_path / "study.toml").write_text(text, encoding="utf-8")
        elif language == "python":
            run([sys.executable, "-c", text], tmp_path)
        elif language == "sh" and text.strip() not in SET_UP:
            printed.append(run(["sh", "-ec", text], tmp_path))
    for table in shown:
        expected = [line.rstrip() for line in table.splitlines()]
        assert any(contains(output, expected) for output in printed), (
            "the table in README is not what the command prints"
        )


def contains(output: str, expected: list[str]) -> bool:
    lines = [line.rstrip() for line in output.splitlines()]
    return any(lines[start : start + len(expected)] == expected for start in range(len(lines)))


def test_languages_are_known() -> None:
    known = {"sh", "toml", "python", "text"}
    unknown = {language for language, _ in BLOCKS} - known
    if unknown:
        pytest.fail(f"blocks that nothing runs: {unknown}")
