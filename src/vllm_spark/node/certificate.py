"""The end of a certificate on this Spark. Standard library alone."""

from __future__ import annotations

import ssl

from vllm_spark.node import endings


def end(path: str) -> float | None:
    """Return when a certificate in a PEM file ends, in epoch seconds; None without a file."""
    shown = endings.output_of("openssl", "x509", "-noout", "-enddate", "-in", path)
    return float(ssl.cert_time_to_seconds(shown.strip().partition("=")[2])) if shown else None
