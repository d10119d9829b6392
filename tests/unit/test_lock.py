"""The lock file: it gives an image its digest, and a broken one is refused with its name."""

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
    f'images: {{"{IMAGE}": {{digest: 12}}}}': "has the digest 12",
    f'images: {{"{IMAGE}": "{GOOD}"}}': "lock.yml",
    "images: [a, b]": "lock.yml",
    "just text": "lock.yml",
    "images: {unclosed": "lock.yml",
}


@pytest.fixture
def locked(resolve: Callable[..., Spec], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Spec]:
    """Resolve the sandbox's recipe, which has no digest of its own, with a lock file of this text."""
    monkeypatch.setattr("conftest.RECIPE_FOLDERS", (Path(__file__).parents[2] / "sandbox" / "recipes",))

    def _locked(text: str) -> Spec:
        (tmp_path / "lock.yml").write_text(text)
        return resolve(recipe="tiny-gemma4", secrets={}, lock=tmp_path / "lock.yml")

    return _locked


def test_the_lock_gives_the_digest(locked: Callable[[str], Spec]) -> None:
    assert locked(f'images: {{"{IMAGE}": {{digest: "{GOOD}"}}}}').image.endswith(f"@{GOOD}")


@pytest.mark.parametrize("text", BROKEN)
def test_a_broken_lock_is_refused(text: str, locked: Callable[[str], Spec]) -> None:
    with pytest.raises(RefusedError) as refused:
        locked(text)
    assert BROKEN[text] in str(refused.value)
