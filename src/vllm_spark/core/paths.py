"""Folders of the checkout. The toolkit runs from its checkout, so they are constant."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
RECIPES = ROOT / "recipes"
NODE = ROOT / "src" / "vllm_spark" / "node"
TEMPLATES = ROOT / "templates"
REPORTS = ROOT / "reports"
RUNBOOKS = ROOT / "docs" / "runbooks"
