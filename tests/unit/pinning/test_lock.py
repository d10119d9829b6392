"""The lock file provides the digest of an image. A malformed lock file is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from vllm_spark.core.refusal import RefusedError
from vllm_spark.inventory.spec import Spec

IMAGE = "registry:5000/vllm-spark/engine:0.32.0-cpu"
GOOD = f"sha256:{'5' * 64}"

# text of the lock file -> a part of the message
BROKEN = {
    "": "has no digest",
    f'images: {{"{IMAGE}": {{digest: "sha256:55"}}}}': "has the digest sha256:55",
    f'images: {{"{IMAGE}": {{digest: 12}}}}': "digest: 12 — expected: a text in quotes",
    f'images: {{"{IMAGE}": "{GOOD}"}}': "lock.yml",
    "images: [a, b]": "lock.yml",
    "just text": "lock.yml",
    "images: {unclosed": "lock.yml",
}


@pytest.fixture
def locked(resolve: Callable[..., Spec], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Spec]:
    """Return a function that resolves the sandbox's recipe, which has no digest, with a lock file of a given text."""
    monkeypatch.setattr("project_files.RECIPE_FOLDERS", (Path(__file__).parents[3] / "sandbox" / "recipes",))

    def _locked(text: str) -> Spec:
        (tmp_path / "lock.yml").write_text(text)
        return resolve(recipe="tiny-gemma4", secrets={}, lock=tmp_path / "lock.yml")

    return _locked


def test_the_digest_comes_from_the_lock_file(locked: Callable[[str], Spec]) -> None:
    assert locked(f'images: {{"{IMAGE}": {{digest: "{GOOD}"}}}}').image.endswith(f"@{GOOD}")


@pytest.mark.parametrize("text", BROKEN)
def test_a_malformed_lock_file_is_refused(text: str, locked: Callable[[str], Spec]) -> None:
    with pytest.raises(RefusedError) as refused:
        locked(text)
    assert BROKEN[text] in str(refused.value)
