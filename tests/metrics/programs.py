"""The distribution's programs, which tests/metrics/install unpacks, as processes on the loopback device."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vllm_spark.core import paths

SHOW = 'mount -t overlay overlay -o "lowerdir=$0:/usr/share" /usr/share && exec "$@"'
UNPACKED = paths.ROOT / ".cache" / "prometheus" / "usr" / "bin"


def binary(name: str) -> str:
    """Return the path of a program. A missing one is an error: nothing else judges the rules."""
    found = shutil.which(name) or shutil.which(name, path=str(UNPACKED))
    assert found, f"no {name} in PATH — expected: the distribution's. Fix: tests/metrics/install"
    return found


def promtool(*words: str, stdin: str = "") -> str:
    """Return what promtool prints. A verdict against its input fails the test."""
    done = subprocess.run([binary("promtool"), *words], input=stdin, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def command(unit: str) -> list[str]:
    """Return the command of a unit of templates/, the program found on this machine."""
    text = (
        (paths.TEMPLATES / unit)
        .read_text(encoding="utf-8")
        .replace("\\\n", "")
        .replace("$$", "$")
        .replace("\\\\", "\\")
    )
    line = next(line for line in text.splitlines() if line.startswith("ExecStart=")).removeprefix("ExecStart=")
    program, *words = line.split()
    found = binary(program.rpartition("/")[2])
    # Alertmanager reads its templates where its package has them, so unpacked ones are shown there to it alone.
    shown = UNPACKED.parent / "share"
    here = ["unshare", "--mount", "sh", "-c", SHOW, str(shown)] if Path(found).is_relative_to(UNPACKED) else []
    return [*here, found, *words]


@contextmanager
def running(words: list[str], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program until the block ends. Its messages are in a file of the folder."""
    with (folder / "programs.log").open("ab") as log:
        process = subprocess.Popen(words, stdout=log, stderr=log, cwd=folder)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(timeout=30)
