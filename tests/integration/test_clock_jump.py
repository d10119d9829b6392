"""A clock that jumps years ahead: what a deploy, the Spark's journal, `trust` and openssl say on each day.

libfaketime sets the clock of every program here, none of which is told the time in another way.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from vllm_spark.core import paths

LIBRARIES = sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))
LIBRARY = os.environ.get("LIBFAKETIME") or (str(LIBRARIES[0]) if LIBRARIES else "")
NAMES = ["spark1", "spark1.local", "192.168.1.20"]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not LIBRARY, reason="no libfaketime: apt-get install faketime, or LIBFAKETIME=PATH"),
]

# A deploy, or a look without one: the last argument. It prints what an owner reads, and keeps the host's certificate.
PROGRAM = """
import json, sys, time
from datetime import UTC, datetime
from pathlib import Path
from vllm_spark.edge import authority, lifetime, store
folder, names, deploys = Path(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3] == "deploy"
host, now, renewal = folder / "tls.pem", datetime.now(UTC), ""
if deploys:
    site = store.read_or_create(folder, now, "", names)
    present = host.read_text() if host.exists() else ""
    if renewal := authority.renewal_reason(present, site.certificate, names, now):
        made = authority.new_certificate(site, names, now)
        host.write_text(made.certificate + made.private_key)
        (folder / "names.pem").write_text(made.names_certificate + made.private_key)
found = {"certificate": host.read_text(), "names_certificate": (folder / "names.pem").read_text()}
life = lifetime.of_host({**found, "authority": store.trusted(folder)})
print(json.dumps([renewal, life.warning(time.time()).partition(" \\u2014 ")[0]]))
"""


class Spark:
    """A folder that is that of the authority and of the edge at once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def run(self, day: int, *argv: str) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "LD_PRELOAD": LIBRARY, "FAKETIME": f"+{day}d"}
        return subprocess.run(argv, cwd=self.folder, env=env, capture_output=True, text=True, check=False)

    def owner(self, day: int, verb: str = "status") -> list[str]:
        """Return why a deploy renews, and the warning of the verbs."""
        done = self.run(day, sys.executable, "-c", PROGRAM, str(self.folder), json.dumps(NAMES), verb)
        assert done.returncode == 0, done.stderr
        said: list[str] = json.loads(done.stdout)
        return said

    def journal(self, day: int) -> str:
        unit = (paths.TEMPLATES / "vllm-edge-end.service").read_text(encoding="utf-8").replace("\\\n", " ")
        (line,) = (line for line in unit.splitlines() if line.startswith("ExecStart="))
        return self.run(day, "sh", "-ec", line.partition("'")[2].rstrip("'").replace("$$", "$")).stdout

    def openssl(self, day: int) -> str:
        words = ("openssl", "verify", "-verify_hostname", "spark1.local", "-CAfile", "ca.crt")
        done = [self.run(day, *words, file) for file in ("tls.pem", "names.pem")]
        said = [next((line for line in one.stderr.splitlines() if "error" in line), one.stdout[-3:]) for one in done]
        return "; ".join(dict.fromkeys(line.strip() for line in said))


# Day -> (the warning of the verbs, whether the journal warns, what openssl says). Nobody deploys after
# day 0.
DAYS = {
    0: ("", False, "OK"),
    366: ("", False, "OK"),
    731: ("the certificate ends in 88 days, on ", True, "OK"),
    820: ("the certificate has ended on ", True, "certificate has expired"),
    3651: ("the certificate has ended on ", True, "certificate has expired"),
}


def test_each_day_has_its_message(tmp_path: Path) -> None:
    spark = Spark(tmp_path)
    spark.owner(0, "deploy")
    for day, (warning, warns, verdict) in DAYS.items():
        said, journal = spark.owner(day)[1], spark.journal(day)
        print(f"day {day}: {said or '-'} | {journal.strip() or '-'} | {spark.openssl(day)}")
        assert said.startswith(warning)
        assert bool(said) == bool(warning)
        assert journal.startswith("<4>the certificate of the edge ends on ") == warns
        assert verdict in spark.openssl(day)


@pytest.mark.parametrize("day", [731, 820, 3651])
def test_a_deploy_of_that_day_heals(day: int, tmp_path: Path) -> None:
    spark = Spark(tmp_path)
    spark.owner(0, "deploy")
    renewal, _ = spark.owner(day, "deploy")
    print(f"day {day}: {renewal}")
    assert renewal
    assert (spark.openssl(day), spark.journal(day)) == ("OK", "")
    assert spark.owner(day, "deploy") == ["", ""]
    trusted = spark.run(day, str(Path(sys.executable).with_name("vllm-spark")), "trust", "--authority", str(tmp_path))
    assert "valid until 20" in trusted.stderr


def test_the_last_two_years_of_an_authority(tmp_path: Path) -> None:
    spark = Spark(tmp_path)
    spark.owner(0, "deploy")
    assert spark.owner(2900, "deploy")[1] == ""
    assert spark.owner(2921, "deploy")[1].startswith("another authority of the site signs from ")
    assert spark.openssl(2921) == "OK"
    assert spark.owner(3290, "deploy") == ["another authority of the site signs now", ""]
    assert spark.owner(3651, "deploy") == ["", ""]
    assert [spark.openssl(day) for day in (3290, 3651, 4000)] == ["OK"] * 3
