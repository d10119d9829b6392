"""Where a name leads, by the configuration of OpenSSH."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from vllm_spark.cli.contact import first_contact, ssh_config
from vllm_spark.cli.contact.ssh_config import Destination

# The first lines of `ssh -G spark` of OpenSSH 9.6 with the block that NVIDIA Sync writes (HostName, User, Port,
# IdentityFile).
OUTPUT = """host spark
user ada
hostname spark-1a2b.local
port 22
addressfamily any
identityfile ~/.ssh/nvsync.key
"""


def test_the_fields_of_a_name() -> None:
    assert ssh_config.parse(OUTPUT) == Destination("spark-1a2b.local", "ada", 22)


@pytest.mark.parametrize("text", ["", "user ada\nport 22\n", OUTPUT.replace("port 22", "port none")])
def test_an_output_without_a_destination(text: str) -> None:
    assert ssh_config.parse(text) is None


def test_an_option_wins_over_the_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh_config, "resolve", lambda _: ssh_config.parse(OUTPUT))
    assert first_contact.destination("spark", None, None) == ("spark-1a2b.local", "ada", 22)
    assert first_contact.destination("spark", "grace", 2222) == ("spark-1a2b.local", "grace", 2222)
    assert first_contact.destination("eve@spark", "grace", None) == ("spark-1a2b.local", "eve", 22)


def test_without_openssh_a_name_is_its_address(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert ssh_config.resolve("spark") is None
    assert first_contact.destination("spark", "ada", None) == ("spark", "ada", 22)


def test_openssh_of_this_machine_answers() -> None:
    if not shutil.which("ssh"):
        pytest.skip("this machine has no ssh")
    resolved = ssh_config.resolve("192.0.2.7")
    assert resolved is not None
    assert resolved.host == "192.0.2.7"
