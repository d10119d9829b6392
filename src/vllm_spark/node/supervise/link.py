"""The connection of two supervisors: authenticated lines, and a beat at least every BEAT_S."""

from __future__ import annotations

import asyncio
import contextlib
import hmac

from vllm_spark.node.supervise import handshake, messages
from vllm_spark.node.supervise.handshake import Keys, LostError, UnprovenError
from vllm_spark.node.supervise.host import Message
from vllm_spark.node.supervise.rank import Rank

BEAT_S = 2.0
# Longer than a busy host needs to send a line, shorter than a client waits for a response.
READ_TIMEOUT_S = 10.0

# Hexadecimal digits of the HMAC before a message, and a space.
MAC_LENGTH = 64
LINE_BYTES = MAC_LENGTH + 1 + messages.LINE_BYTES


class Link:
    """A connection after its handshake. A line is the HMAC of its number and its message, a space, and the message: a
    line that was inserted, changed, repeated or left out ends the connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, keys: Keys) -> None:
        self._reader, self._writer, self._keys = reader, writer, keys
        self._sent = self._received = 0

    @property
    def token(self) -> str:
        """The token of the Ray cluster that starts over this connection."""
        return self._keys.token

    def send(self, message: Message) -> None:
        """Send a message. A lost peer is not an error here, nor is one that does not read: `receive` detects both."""
        if self._writer.is_closing():
            return  # otherwise asyncio would log a warning for every beat
        content = messages.serialize(message)
        self._writer.write(_mac(self._keys.send, self._sent, content) + b" " + content + b"\n")
        self._sent += 1

    async def flush(self) -> None:
        """Return when the peer's host has what was sent, or after BEAT_S."""
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            await asyncio.wait_for(self._writer.drain(), BEAT_S)

    async def receive(self) -> Message:
        """Return the next message. Raises LostError."""
        try:
            line = await asyncio.wait_for(self._reader.readline(), READ_TIMEOUT_S)
        except TimeoutError:
            raise LostError(f"silent for {READ_TIMEOUT_S:.0f} s") from None
        except ValueError:
            raise LostError(f"it sent a line of more than {LINE_BYTES} bytes") from None
        except OSError as error:
            raise LostError(f"the connection broke ({error})") from error
        if not line.endswith(b"\n"):
            raise LostError("the connection was closed")
        mac, _, content = line[:-1].partition(b" ")
        if not hmac.compare_digest(mac, _mac(self._keys.receive, self._received, content)):
            raise LostError("it sent a line that is not authentic")
        self._received += 1
        try:
            return messages.parse(content)
        except messages.InvalidMessageError as invalid:
            raise LostError(str(invalid)) from None

    async def expect(self, key: str) -> Message:
        """Return the next message that has this key; beats are skipped. Raises LostError, also for a goodbye."""
        while True:
            message = await self.receive()
            if "bye" in message:
                raise LostError(str(message["bye"]))
            if key in message:
                return message

    async def beat(self) -> None:
        """Send a beat every BEAT_S until cancelled."""
        while True:
            self.send({"beat": 1})
            await asyncio.sleep(BEAT_S)

    def close(self) -> None:
        self._writer.close()


def _mac(key: bytes, number: int, content: bytes) -> bytes:
    return hmac.digest(key, number.to_bytes(8, "big") + content, "sha256").hex().encode()


async def establish(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, rank: Rank) -> Link:
    """Return the link of a connection whose other side has proved the key. Closes the connection otherwise.

    Raises UnprovenError and OSError.
    """
    try:
        keys = await asyncio.wait_for(handshake.prove(reader, writer, rank), READ_TIMEOUT_S)
    except TimeoutError:
        writer.close()
        raise UnprovenError(f"it did not prove the key within {READ_TIMEOUT_S:.0f} s") from None
    except BaseException:
        writer.close()
        raise
    return Link(reader, writer, keys)
