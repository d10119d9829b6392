"""The tests that `make quick` runs: those of the packages that a change touches."""

from __future__ import annotations

from collections import Counter

import pytest

import touched
from vllm_spark.core import paths

PACKAGES = sorted(file.parent.name for file in (paths.ROOT / "src" / "vllm_spark").glob("*/__init__.py"))


@pytest.mark.parametrize("package", PACKAGES)
def test_each_package_has_a_folder_of_tests(package: str) -> None:
    folder = f"tests/unit/{package}"
    assert touched.tests([f"src/vllm_spark/{package}/a/b.py"]) == [folder]
    assert list((paths.ROOT / folder).glob("test_*.py"))


@pytest.mark.parametrize(
    ("file", "folder"),
    [
        ("tests/unit/edge/test_edge_config.py", "tests/unit/edge"),
        ("plugins/action/vllm_plan.py", "tests/unit/plugins"),
        ("src/vllm_spark_ansible/action.py", "tests/unit/plugins"),
        ("lab/pages/changelog.py", "tests/lab"),
    ],
)
def test_the_tests_of_another_file(file: str, folder: str) -> None:
    assert touched.tests([file]) == [folder]


def test_no_two_files_of_tests_have_the_same_name() -> None:
    """`make look-alike` is one run of pytest over several folders, which imports each file by its name alone."""
    names = [
        file.name
        for folder in ("unit", "integration", "lab")
        for file in (paths.ROOT / "tests" / folder).rglob("test_*.py")
    ]
    assert [name for name, times in Counter(names).items() if times > 1] == []
