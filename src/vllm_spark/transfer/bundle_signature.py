"""Sign and verify the list of a bundle with ssh-keygen. Standard library only.

ssh-keygen -Y needs OpenSSH 8.2 or later. The format of a signature is PROTOCOL.sshsig of OpenSSH.
"""

from __future__ import annotations

import base64
import hashlib
import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from vllm_spark.core.refusal import RefusedError, register
from vllm_spark.core.text import one_line

BROKEN = register("bundle-signature", runbook="bundle-signature")
NAMESPACE_DIFFERS = register("bundle-signature-namespace", runbook="bundle-signature")
LIST_CHANGED = register("bundle-list-changed", runbook="bundle-signature")
SIGNER_UNKNOWN = register("bundle-signer-unknown", runbook="bundle-signature")
SIGNER_REFUSED = register("bundle-signer-refused", runbook="bundle-signature")
NO_SIGNERS = register("bundle-no-signers", runbook="bundle-signature")
NO_SSH_KEYGEN = register("bundle-no-ssh-keygen", runbook="bundle-signature")

NAMESPACE = "vllm-spark-bundle"
BEGIN, END = "-----BEGIN SSH SIGNATURE-----", "-----END SSH SIGNATURE-----"
MAGIC, VERSION = b"SSHSIG", 1
TIMEOUT_S = 60.0


class KeygenError(Exception):
    """ssh-keygen or ssh-add failed. The text is its message."""


@dataclass(frozen=True, slots=True)
class Signature:
    """What a signature says about itself. `key` is the public key in base64."""

    key: str
    key_type: str
    namespace: str

    @property
    def fingerprint(self) -> str:
        digest = hashlib.sha256(base64.b64decode(self.key)).digest()
        return f"SHA256:{base64.b64encode(digest).decode().rstrip('=')}"


def parse(armor: str) -> Signature:
    """Return the content of an armored signature. Raises ValueError."""
    lines = armor.strip().splitlines()
    if not lines or lines[0] != BEGIN:
        raise ValueError(f"it does not begin with {BEGIN}")
    if lines[-1] != END:
        raise ValueError(f"it does not end with {END}")
    blob = base64.b64decode("".join(lines[1:-1]), validate=True)
    if blob[:6] != MAGIC or int.from_bytes(blob[6:10]) != VERSION:
        raise ValueError(f"it is not version {VERSION} of {MAGIC.decode()}")
    fields, at = [], 10
    while at < len(blob):
        size = int.from_bytes(blob[at : at + 4])
        if at + 4 + size > len(blob):
            raise ValueError(f"{len(blob)} bytes, {at + 4 + size} are expected")
        fields.append(blob[at + 4 : at + 4 + size])
        at += 4 + size
    if len(fields) != 5:  # noqa: PLR2004  public key, namespace, reserved, hash algorithm, signature
        raise ValueError(f"it has {len(fields)} fields, 5 are expected")
    key, namespace = fields[0], fields[1]
    key_type = key[4 : 4 + int.from_bytes(key[:4])]
    return Signature(base64.b64encode(key).decode(), one_line(key_type.decode()), one_line(namespace.decode()))


def ssh_keygen(*words: str | Path, content: bytes = b"", program: str = "ssh-keygen") -> str:
    """Run ssh-keygen without a terminal, so that it cannot wait for a passphrase. Return its stdout.

    Raises KeygenError with its message.
    """
    hidden = {"DISPLAY", "WAYLAND_DISPLAY", "SSH_ASKPASS"}
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    try:
        done = subprocess.run(  # noqa: S603  the words are options and paths
            [program, *map(str, words)],
            input=content,
            capture_output=True,
            check=False,
            timeout=TIMEOUT_S,
            env={**environment, "SSH_ASKPASS_REQUIRE": "never", "LC_ALL": "C"},
            start_new_session=True,
        )
    except FileNotFoundError as error:
        raise NO_SSH_KEYGEN.error(
            what=f"this machine has no {program}",
            expected="OpenSSH 8.2 or later, which signs and verifies bundles",
            fix="sudo apt-get install openssh-client",
        ) from error
    except subprocess.TimeoutExpired as error:
        raise KeygenError(f"{program} did not end within {TIMEOUT_S:.0f} s") from error
    if done.returncode:
        message = done.stderr.decode(errors="replace").replace("Signing data on standard input", "")
        raise KeygenError(one_line(" ".join(message.replace("Enter passphrase:", "").split()))[:400])
    return done.stdout.decode(errors="replace")


def sign(content: bytes, key: Path) -> str:
    """Return the armored signature of a key, or of the agent if `key` is a public key. Raises KeygenError."""
    return ssh_keygen("-Y", "sign", "-f", key, "-n", NAMESPACE, content=content)


def allowed_line(signature: Signature, principal: str) -> str:
    """Return the line of allowed_signers that accepts the key of a signature for bundles."""
    return f'{principal} namespaces="{NAMESPACE}" {signature.key_type} {signature.key}'


@dataclass(frozen=True, slots=True)
class Verifier:
    """Verifies the list of one bundle against an allowed_signers file."""

    list_file: Path
    content: bytes
    signers: Path

    def verify(self, armor: str) -> str:
        """Return the signer, e.g. `anna@laptop (SHA256:…)`. Raises RefusedError."""
        try:
            signature = parse(armor)
        except ValueError as error:
            what = f"the signature of {self.list_file} ({len(armor)} characters) is truncated or damaged: {error}"
            raise BROKEN.error(what=what, expected="a complete SSH signature", fix=COPY_AGAIN) from error
        if signature.namespace != NAMESPACE:
            what = f"{self.list_file} is signed for the namespace {signature.namespace!r} with {signature.fingerprint}"
            raise NAMESPACE_DIFFERS.error(what=what, expected=f"the namespace {NAMESPACE!r}", fix=SIGN_AGAIN)
        with tempfile.NamedTemporaryFile("w", suffix=".sig") as file:
            file.write(armor)
            file.flush()
            self._check_content(Path(file.name), signature)
            return f"{self._principal(Path(file.name), signature)} ({signature.fingerprint})"

    def _check_content(self, file: Path, signature: Signature) -> None:
        try:
            ssh_keygen("-Y", "check-novalidate", "-n", NAMESPACE, "-s", file, content=self.content)
        except KeygenError as error:
            sha256 = hashlib.sha256(self.content).hexdigest()
            what = f"{self.list_file} (sha256 {sha256}) is not what {signature.fingerprint} signed: {error}"
            raise LIST_CHANGED.error(what=what, expected="the list that was signed", fix=COPY_AGAIN) from error

    def _principal(self, file: Path, signature: Signature) -> str:
        """Return the signer's name in allowed_signers. Raises RefusedError."""
        if not self.signers.is_file():
            what = f"{self.signers} does not exist, so the signer {signature.fingerprint} is not known"
            raise NO_SIGNERS.error(
                what=what, expected="an allowed_signers file with the keys that you trust", fix=self._allow()
            )
        try:
            found = ssh_keygen("-Y", "find-principals", "-s", file, "-f", self.signers).splitlines()
            principal = (found or ["*"])[0]
            words = ("-Y", "verify", "-I", principal, "-n", NAMESPACE, "-s", file, "-f", self.signers)
            ssh_keygen(*words, content=self.content)
        except KeygenError as error:
            raise self._untrusted(signature, str(error)) from error
        return one_line(principal)

    def _untrusted(self, signature: Signature, message: str) -> RefusedError:
        if signature.key in self.signers.read_text(encoding="utf-8", errors="replace").split():
            what = f"{self.signers} has the key {signature.fingerprint} but does not accept it now: {message}"
            expected = f"a key that is valid today for the namespace {NAMESPACE!r}"
            return SIGNER_REFUSED.error(
                what=what, expected=expected, fix=f"correct its line in {self.signers}, or {SIGN_AGAIN}"
            )
        key = f"{signature.key_type} {signature.fingerprint}"
        what = f"the bundle is signed with {key}, which is not in {self.signers}: {message}"
        return SIGNER_UNKNOWN.error(what=what, expected="a signer that you trust", fix=self._allow())

    def _allow(self) -> str:
        add = f"""(printf '%s' 'NAME namespaces="{NAMESPACE}" '; cat KEY.pub) >> {self.signers}"""
        return f"get KEY.pub from the signer, compare `ssh-keygen -lf KEY.pub` with this fingerprint, then {add}."


COPY_AGAIN = "copy files.sha256, files.sha256.sig and bundle.json of the bundle again from the machine that wrote it."
SIGN_AGAIN = "remove bundle.json where the bundle was written, and run the same pull.yml there again."
