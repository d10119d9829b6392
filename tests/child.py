"""Runs a function in a process of its own. The process of the tests has threads, so it must not fork itself."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import Any

# Its children come from a process without threads. A function and its arguments are passed to them by pickle.
CONTEXT = multiprocessing.get_context("forkserver")
# The children then import these once, all together.
PRELOADED = ("ansible.module_utils.testing", "pytest")
CONTEXT.set_forkserver_preload(list(PRELOADED))


def status_of(function: Callable[..., object], *args: Any) -> int:
    """Run a function in a child process and return that one's exit status."""
    process = CONTEXT.Process(target=function, args=args)
    process.start()
    process.join(60)
    assert process.exitcode is not None, f"{function.__name__} runs for more than 60 s"
    return process.exitcode
