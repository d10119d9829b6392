"""ansible-doc finds the page of every module."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from vllm_spark.core import paths

PLUGINS = paths.ROOT / "plugins"


def test_ansible_doc_finds_every_page(tmp_path: Path) -> None:
    files = (PLUGINS / "modules").glob("*.py")
    names = sorted({f"vllm_spark.toolkit.{file.stem}" for file in files})
    done = subprocess.run(
        ["ansible-doc", "-t", "module", "--json", *names],
        env={**os.environ, "ANSIBLE_CONFIG": str(paths.ROOT / "ansible.cfg"), "ANSIBLE_LOCAL_TEMP": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    pages = json.loads(done.stdout)
    assert sorted(pages) == names
    assert [name for name, page in pages.items() if not (page["doc"]["description"] and page["examples"])] == []
    assert [name for name, page in pages.items() if "check_mode" not in page["doc"].get("attributes", {})] == []
