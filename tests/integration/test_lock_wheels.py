"""Every package of requirements.lock has a wheel for every machine that deploys, judged by uv."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from vllm_spark.core import paths

# cryptography-50.0.2.tar.gz, of which an Intel Mac has no wheel.
SOURCE = "7b46165bb56eb4704e2eaaf86f3c940d19154535d9b0ca7d6d590b04060e00d5"
PLATFORMS = ["aarch64-manylinux_2_28", "x86_64-manylinux_2_28", "aarch64-apple-darwin", "x86_64-apple-darwin"]


def install(listed: Path, python: str, platform: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Return what uv says to an installation for another machine. Nothing is installed."""
    words = ("--dry-run", "--no-deps", "--only-binary=:all:", f"--target={folder / 'none'}", f"--requirement={listed}")
    target = (f"--python-version={python}", f"--python-platform={platform}")
    argv = (str(Path(sys.executable).with_name("uv")), "pip", "install", "--require-hashes", *words, *target)
    return subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.online
@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13", "3.14"])
@pytest.mark.parametrize("platform", PLATFORMS)
def test_every_package_has_a_wheel(python: str, platform: str, tmp_path: Path) -> None:
    done = install(paths.ROOT / "requirements.lock", python, platform, tmp_path)
    assert done.returncode == 0, done.stderr
    assert f" + ansible-core=={'2.19' if python == '3.11' else '2.21'}." in done.stderr


@pytest.mark.online
def test_uv_finds_a_package_without_a_wheel(tmp_path: Path) -> None:
    """The check above can fail."""
    listed = tmp_path / "requirements.txt"
    listed.write_text(f"cryptography==50.0.2 --hash=sha256:{SOURCE}\n", encoding="utf-8")
    done = install(listed, "3.13", "x86_64-apple-darwin", tmp_path)
    assert done.returncode != 0
    assert "cryptography==50.0.2 has no usable wheels" in done.stderr
