"""What a rank runs, for the comparison with the other rank."""

from __future__ import annotations

import hashlib

from vllm_spark.node.supervise import host
from vllm_spark.node.supervise.host import Message
from vllm_spark.node.supervise.rank import Rank

# What a container of an image depends on, for `docker image inspect`. Docker's id of the image is not in it: it depends
# on the image store. An absent and an empty field print the same.
IMAGE_FIELDS = "".join(
    f" {{{{with .{field}}}}}{{{{json .}}}}{{{{end}}}}"
    for field in ("Cmd", "Entrypoint", "Env", "User", "Volumes", "WorkingDir")
)
# An image whose packed layers are not all in the containerd store has no Config.
IMAGE_CONTENT = f"{{{{.Os}}}}/{{{{.Architecture}}}} {{{{json .RootFS}}}}{{{{with .Config}}}}{IMAGE_FIELDS}{{{{end}}}}"


async def hello(rank: Rank) -> Message:
    """Return the first message of a supervisor after the handshake."""
    record = host.read(rank.record)
    content = await host.output_of("docker", "image", "inspect", "--format", IMAGE_CONTENT, rank.image)
    return {"launch": rank.launch, "image": image_identity(rank.image, content), "toolkit": record.get("toolkit")}


def image_identity(name: str, content: str) -> str:
    """Return a text that is equal on both hosts if they have the same image, in whichever store Docker keeps it.
    `content` is the output of IMAGE_CONTENT, empty for an absent image. A name with a digest identifies its image."""
    digest = name.partition("@")[2]
    if content and digest:
        return digest
    return f"sha256:{hashlib.sha256(content.encode()).hexdigest()}" if content else ""


def differences(own: Message, peer: Message) -> list[str]:
    """Return why two supervisors must not start: one line per property in which they differ."""
    return [
        f"{name} is {own.get(name)} here and {peer.get(name)} there"
        for name in ("launch", "image", "toolkit")
        if own.get(name) != peer.get(name)
    ]
