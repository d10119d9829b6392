"""Folders in the container of an engine that the toolkit fills. A recipe mounts nothing over them."""

from __future__ import annotations

HUB_IN_CONTAINER = "/hub"
CACHE_IN_CONTAINER = "/cache"
# The folder of the socket of a closed engine.
API_IN_CONTAINER = "/api"
# In memory while the engine is closed.
SCRATCH_IN_CONTAINER = "/tmp"  # noqa: S108  not on the host

OWN_FOLDERS = (API_IN_CONTAINER, CACHE_IN_CONTAINER, HUB_IN_CONTAINER, SCRATCH_IN_CONTAINER)
