"""`vllm-spark contact`: host keys of a known_hosts file, also of one with lines that paramiko cannot read."""

from __future__ import annotations

from pathlib import Path

import pytest
from paramiko import HostKeys, RSAKey

from vllm_spark.cli.contact.keys import known_keys

RSA = RSAKey.generate(1024).get_base64()
OTHER = RSAKey.generate(1024).get_base64()
HASHED = HostKeys.hash_host("spark1")


@pytest.mark.parametrize(
    ("text", "known"),
    [
        (f"spark1 ssh-rsa {RSA} a comment\n", {"ssh-rsa": RSA}),
        (f"spark2,spark1 ssh-rsa {RSA}\n", {"ssh-rsa": RSA}),
        (f"{HASHED} ssh-rsa {RSA}\n", {"ssh-rsa": RSA}),
        (f"@cert-authority *.lan ssh-rsa {RSA}\n  spark1 ssh-rsa {OTHER}\n", {"ssh-rsa": OTHER}),
        (f"@revoked spark1 ssh-rsa {RSA}\n", {}),
        (
            f"spark1 ssh-rsa ====\nspark1 ssh-nothing AAAA\nspark1\n\n# spark1 ssh-rsa {OTHER}\nspark1 ssh-rsa {RSA}\n",
            {"ssh-rsa": RSA},
        ),
        (f"spark1 ssh-rsa {RSA}\nspark1 ssh-rsa {OTHER}\n", {"ssh-rsa": RSA}),
        (f"spark2 ssh-rsa {RSA}\n", {}),
        ("\0\xff", {}),
    ],
    ids=["comment", "names", "hashed", "authority", "revoked", "damaged", "twice", "other host", "no text"],
)
def test_host_keys_of_a_name(text: str, known: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "known_hosts"
    file.write_text(text)
    assert known_keys(file, "spark1") == known


def test_no_file(tmp_path: Path) -> None:
    assert known_keys(tmp_path / "none", "spark1") == {}
