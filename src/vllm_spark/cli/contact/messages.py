"""The refusals of `vllm-spark contact`: a table of kinds and their texts."""

from __future__ import annotations

from dataclasses import dataclass

from vllm_spark.core.refusal import RefusalKind, RefusedError, register

PASSWORD_VARIABLE = "VLLM_SPARK_PASSWORD"  # noqa: S105  the variable's name


@dataclass(frozen=True, slots=True)
class Message:
    """A kind of refusal with its texts, which are templates of str.format."""

    kind: RefusalKind
    what: str
    expected: str
    fix: str

    def error(self, **values: object) -> RefusedError:
        """Return the exception to raise. `values` fill the templates."""
        what, expected, fix = (text.format(**values) for text in (self.what, self.expected, self.fix))
        return self.kind.error(what=what, expected=expected, fix=fix)


FINGERPRINT_COUNT = Message(
    register("contact-fingerprints", runbook="contact-host-key"),
    "{fingerprints} --fingerprint for {hosts} hosts",
    "one for each host, in their order, or none",
    "pass one --fingerprint per host, or none and compare at the prompt.",
)
PRIVATE_KEY = Message(
    register("contact-private-key", runbook="contact-key"),
    "{file} is a private key",
    "a public key, the only one that ever leaves this machine",
    "--key {file}.pub; nothing was sent.",
)
NO_KEY = Message(
    register("contact-no-key", runbook="contact-key"),
    "{detail}",
    "the public key of this machine",
    "--key FILE.pub; or create one: ssh-keygen -t ed25519.",
)
NO_SIGNER = Message(
    register("contact-no-signer", runbook="contact-key"),
    "this machine cannot sign for {key_file}: the key is not in the agent, and {private_file} {detail}",
    "the private key in this machine's ssh-agent, or without a passphrase beside the public key",
    "ssh-add {private_file}.",
)
UNREACHABLE = Message(
    register("contact-unreachable", runbook="contact-unreachable"),
    "{host} port {port}: {detail}",
    "an SSH server",
    "ping {host}; on the Spark: sudo systemctl enable --now ssh.",
)
HOST_KEY_CHANGED = Message(
    register("contact-host-key-changed", runbook="contact-host-key"),
    "{name} presents {presented}, and {known_hosts} has {known}",
    "the known host key; a third party may intercept the connection",
    "if the Spark was reinstalled, ssh-keygen -R {quoted_name} -f {known_hosts}, and compare the new key at its "
    "screen.",
)
WRONG_FINGERPRINT = Message(
    register("contact-fingerprint", runbook="contact-host-key"),
    "{name} presents {presented}",
    "{fingerprint}",
    "at the screen of the Spark: ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub. If it prints neither of them, do "
    "not continue over this network.",
)
UNCONFIRMED = Message(
    register("contact-unconfirmed", runbook="contact-host-key"),
    "the host key of {name} is not confirmed: {type} {fingerprint}",
    "the answer yes after a comparison, or --fingerprint",
    "compare it at the screen of the Spark, then --fingerprint {fingerprint}.",
)
NO_PASSWORD = Message(
    register("contact-no-password", runbook="contact-password"),
    "no password for {user} on {host}, and no terminal to ask for it",
    f"a password in {PASSWORD_VARIABLE}",
    f"run the command in a terminal, or set {PASSWORD_VARIABLE} in this shell's environment.",
)
WRONG_PASSWORD = Message(
    register("contact-password", runbook="contact-password"),
    "{host} does not accept this password for {user}",
    "the password of this user at the screen of the Spark",
    "try again; the user of a Spark is the one created at its first start, which --user {user} may not be.",
)
NO_PASSWORD_LOGIN = Message(
    register("contact-no-password-login", runbook="contact-password"),
    "{host} accepts {methods} for {user} and not a password alone",
    "password login, for this first contact",
    "at the screen of the Spark, add the public key to ~/.ssh/authorized_keys.",
)
NOT_INSTALLED = Message(
    register("contact-install", runbook="contact-key"),
    "{host} did not install the key: exit status {status}, {detail}",
    "a home folder that {user} may write",
    "on the Spark, check that ~{user}/.ssh belongs to {user} and that its disk is not full.",
)
KEY_REJECTED = Message(
    register("contact-not-let-in", runbook="contact-key"),
    "{host} has {fingerprint} in authorized_keys of {user} and rejects it",
    "a login by the key",
    "on the Spark: chmod go-w ~, then sudo journalctl -u ssh -n 20, which shows the reason.",
)
