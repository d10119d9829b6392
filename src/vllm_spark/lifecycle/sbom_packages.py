"""The packages of requirements.lock as components of a CycloneDX document. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

# NAME==VERSION ; MARKER \, and on the lines that follow a hash for each file of that version.
_PIN = re.compile(
    r"(?m)^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==([^ ;\\\n]+)([^\n]*)\n((?: +--hash=sha256:[0-9a-f]{64}[ \\]*\n)+)"
)
_HASH = re.compile(r"sha256:([0-9a-f]{64})")


def packages(requirements: str) -> Iterator[dict[str, Any]]:
    """Yield a component per package. One version has several files, of which pip installs one; each is a hash."""
    for name, version, rest, hashes in _PIN.findall(requirements):
        normal = re.sub("[-_.]+", "-", name).lower()
        purl = f"pkg:pypi/{normal}@{version}"
        files = [{"alg": "SHA-256", "content": sha256} for sha256 in _HASH.findall(hashes)]
        found = {
            "type": "library",
            "bom-ref": purl,
            "name": name,
            "version": version,
            "purl": purl,
            "externalReferences": [
                {"type": "distribution", "url": f"https://pypi.org/simple/{normal}/", "hashes": files},
            ],
        }
        marker = rest.strip(" \\;").strip()
        yield {**found, "properties": [{"name": "vllm-spark:only-if", "value": marker}]} if marker else found
