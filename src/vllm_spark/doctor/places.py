"""Where a log is from. The doctor's fixes name a site by words in capitals; of a known place they get its own names."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vllm_spark.core import inventory_host, ssh_command

WORDS = re.compile(r"(?<![\w-])(?:HEAD,WORKER|HOST|NAME|CONTAINER|IMAGE|REGISTRY|USER@ADDRESS)(?![\w=])")
# On the machine that deploys a command needs no ssh.
BY_SSH = re.compile(r"\bssh (?:-t )?USER@ADDRESS ")


@dataclass(frozen=True, slots=True)
class Place:
    """A Spark, and the deployment whose log it is. An empty value is unknown. `hosts` are those of the deployment, the
    head first. `login` is what ssh needs to reach the Spark. `local`: it is the machine that deploys. `judged`: the
    gate garbage has found the answers of this start good."""

    host: str = ""
    deployment: str = ""
    hosts: Sequence[str] = ()
    image: str = ""
    login: str = ""
    local: bool = False
    judged: bool = False

    @classmethod
    def of_host(cls, host: str, variables: Mapping[str, Any], **known: Any) -> Place:
        """Return a place on a host of the inventory with these variables."""
        login, local = ssh_command.destination(host, variables), inventory_host.is_local(variables)
        return cls(host, login=login, local=local, **known)

    def fill(self, text: str) -> str:
        """Return a text with the names of this place. A word for what is unknown stays."""
        hosts = ",".join(self.hosts) or self.host
        names = {
            # The ranks of a deployment start and stop together.
            **dict.fromkeys(("HEAD,WORKER", "HOST"), hosts),
            "NAME": self.deployment,
            "CONTAINER": f"vllm-{self.deployment}" if self.deployment else "",
            "IMAGE": self.image,
            "REGISTRY": self._registry(),
            "USER@ADDRESS": self.login,
        }
        return WORDS.sub(lambda word: names[word[0]] or word[0], BY_SSH.sub("", text) if self.local else text)

    def _registry(self) -> str:
        """Return the registry of the image, as Docker reads its name."""
        first, slash, _ = self.image.partition("/")
        return (first if slash and re.search("[.:]", first) else "docker.io") if self.image else ""


NOWHERE = Place()
