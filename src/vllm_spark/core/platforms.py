"""Platforms of images, as registries name them, and the hosts that run them."""

from __future__ import annotations

from collections.abc import Mapping

# A Spark's platform. The sandbox's recipes name a second one.
DEFAULT_PLATFORMS = ("linux/arm64",)

# Platform of an image -> the machine name that `uname -m` prints on such a host.
MACHINES: Mapping[str, str] = {"linux/arm64": "aarch64", "linux/amd64": "x86_64"}
