"""The vocabulary of gpt-oss, against the library of the engine that reads it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import environments

from vllm_spark.recipe import loader

LOAD = "import openai_harmony as h; h.load_harmony_encoding(h.HarmonyEncodingName.HARMONY_GPT_OSS)"
PACKAGES = environments.HERE / "requirements-transformers-5.14.txt"


def loading(folder: Path) -> str:
    """Return what the library says of a folder. It names the checksum that it expects of a file with another one."""
    environment = {"PYTHONPATH": str(environments.packages(PACKAGES)), "TIKTOKEN_ENCODINGS_BASE": str(folder)}
    words = [sys.executable, "-S", "-c", LOAD]
    done = subprocess.run(words, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    return done.stderr


def test_the_recipe_has_the_file_that_the_library_expects(tmp_path: Path) -> None:
    recipe = loader.load("gpt-oss-120b").document
    (added,) = recipe["image"]["derive"]["files"]
    place, _, name = added["path"].rpartition("/")
    assert recipe["env"]["TIKTOKEN_ENCODINGS_BASE"] == place
    assert "No such file or directory" in loading(tmp_path)
    (tmp_path / name).write_text("IQ== 0\n")
    assert f"expected={added['sha256']}" in loading(tmp_path)
