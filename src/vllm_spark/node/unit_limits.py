"""Limits of vllm@.service that programs of the host count with. tests/unit/project/test_one_source.py compares them."""

from __future__ import annotations

# The start limit: so many starts within so many seconds, and the unit stays down. The head of a pair counts the same
# for both ranks.
MAX_STARTS = 5
WITHIN_S = 3600
LIMIT_REACHED = f"{MAX_STARTS} starts within {WITHIN_S // 60} min"
# The exit status after which the unit does not start again: EX_CONFIG of sysexits.h.
NO_RESTART = 78
# A server that ends within its first requests has a fault, and that counts against the start limit. A later end does
# not.
GOOD_S = 300.0
# Seconds that `docker stop` leaves an engine. Half of a 0.20 engine's exits take longer than Docker's ten seconds: it
# joins its workers first. The unit leaves its programs some seconds more.
STOP_TIMEOUT_S, AFTER_STOP_S = 30, 15
