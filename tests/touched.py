"""Print the tests of the packages that a change touches, for `make quick`.

The change is what differs from where this branch left main, with what is not committed.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path

from vllm_spark.core import paths

UNIT_TESTS = "tests/unit/**/test_*.py"


def git(*words: str) -> list[str]:
    """Return the lines that git prints; none if it fails."""
    asked = subprocess.run(("git", *words), cwd=paths.ROOT, stdout=subprocess.PIPE, text=True, check=False)
    return asked.stdout.splitlines()


def changed() -> list[str]:
    """Return the files that differ from where the branch left main."""
    main = "origin/main" if git("rev-parse", "--quiet", "--verify", "origin/main") else "main"
    base = git("merge-base", "HEAD", main) or ["HEAD"]
    return [*git("diff", "--name-only", base[0]), *git("ls-files", "--others", "--exclude-standard")]


def tests_of(file: str) -> list[str]:
    """Return the folder of tests of a file's package, or the tests that name a file of another folder."""
    match Path(file).parts:
        case ("src", "vllm_spark", package, _, *_) | ("tests", "unit", package, *_):
            return [f"tests/unit/{package}"]
        case ("src" | "plugins", *_):
            return ["tests/unit/plugins"]
        case ("lab", *_) | ("tests", "lab", *_):
            return ["tests/lab"]
        case ("roles" | "molecule", name, *_):
            return git("grep", "-lw", name, "--", UNIT_TESTS)
        case _:
            return git("grep", "-lw", Path(file).stem, "--", UNIT_TESTS)


def tests(files: Iterable[str]) -> list[str]:
    """Return the folders and files of tests, none of them inside another one."""
    found = {test for file in files for test in tests_of(file) if (paths.ROOT / test).exists()}
    return sorted(test for test in found if str(Path(test).parent) not in found)


if __name__ == "__main__":
    print(*tests(changed()))
