"""What systemd says of the units: how much of a Spark each could reach if its program were taken over."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from vllm_spark.core import paths

ANALYZE = shutil.which("systemd-analyze")

# Unit -> the most that `systemd-analyze security` may give it, of 10. Docker's client and the launch need more.
EXPOSURE = {
    "vllm-edge-end.service": 1.0,
    "vllm-edge-quota.service": 1.0,
    "vllm-edge-route.service": 1.7,
    "vllm-edge-switch.service": 0.7,
    "vllm-edge.service": 1.7,
    "vllm-gave-up@.service": 2.0,
    "vllm-lease.service": 2.7,
    "vllm-liveness@.service": 2.4,
    "vllm-metrics.service": 1.3,
    "vllm-metrics-alerts.service": 1.6,
    "vllm-metrics-host.service": 1.6,
    "vllm-metrics-prometheus.service": 1.7,
    "vllm-notify.service": 1.8,
    "vllm-spark-firewall.service": 2.1,
    "vllm-switch-root@.service": 1.8,
    "vllm@.service": 4.8,
}


def test_every_unit_has_a_bound() -> None:
    assert {file.name for file in paths.TEMPLATES.glob("*.service")} == set(EXPOSURE)


@pytest.mark.skipif(ANALYZE is None, reason="systemd-analyze is not installed, which judges units")
@pytest.mark.parametrize("unit", EXPOSURE)
def test_a_unit_reaches_little(unit: str) -> None:
    threshold = f"--threshold={EXPOSURE[unit] * 10:.0f}"
    command = [str(ANALYZE), "security", "--offline=true", "--no-pager", threshold, str(paths.TEMPLATES / unit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-500:]


@pytest.mark.parametrize(
    ("step", "needs", "never"),
    [
        ("--mode=2710", "CAP_FSETID", "RestrictSUIDSGID"),
        ("swapoff", "CAP_SYS_ADMIN", "@swap"),
        (">/proc/sys/vm/drop_caches", "CAP_DAC_OVERRIDE", "ProtectKernelTunables"),
        ("chown", "CAP_CHOWN", "DynamicUser"),
        ("nft", "CAP_NET_ADMIN", "PrivateNetwork"),
    ],
)
def test_the_launch_may_do_each_of_its_steps(step: str, needs: str, never: str) -> None:
    unit = (paths.TEMPLATES / "vllm@.service").read_text(encoding="utf-8")
    assert step in (paths.TEMPLATES / "launch.sh.j2").read_text(encoding="utf-8")
    assert needs in unit
    assert never not in unit
