"""Where the parts of a checkout lie. The toolkit is run from its checkout, so these are fixed."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
RECIPES = ROOT / "recipes"
NODE = ROOT / "src" / "vllm_spark" / "node"
TEMPLATES = ROOT / "templates"
REPORTS = ROOT / "reports"
RUNBOOKS = ROOT / "docs" / "runbooks"
