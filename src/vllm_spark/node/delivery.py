"""Sends a message to the target of the owner: a topic of ntfy, a webhook, or a command. Standard library alone.

No error has the secret of the target or the path of its URL, which often is one.
"""

from __future__ import annotations

import http.client
import json
import os
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from vllm_spark.node.deployment_state import clean
from vllm_spark.node.troubles import ALERT, Message

NTFY, WEBHOOK = "ntfy", "webhook"
SCHEMA = "vllm-spark/message/1"
HTTP_TIMEOUT_S, ANSWER_TIMEOUT_S, COMMAND_TIMEOUT_S = 20.0, 5.0, 60.0
# A line of the journal has more than the reason.
REASON_LENGTH = 150


class NoRedirect(urllib.request.HTTPRedirectHandler):
    """Ends a request with the status of a redirect, which would carry the secret to another server."""

    def redirect_request(self, *_: object) -> None:
        return None


def send(message: Message, settings: Mapping[str, Any]) -> str:
    """Send a message. Returns why it was not delivered, empty if it was. `settings`: what inventory/notify.py gives."""
    return attempted(lambda: run(message, settings) if "command" in settings else post(message, settings), settings)


def beat(settings: Mapping[str, Any]) -> str:
    """Ask the heartbeat URL, whose server tells the owner when nobody asks any more. Returns why it does not answer."""

    def asked() -> str:
        with opener().open(settings["heartbeat"], timeout=HTTP_TIMEOUT_S):
            return ""

    return attempted(asked, settings)


def attempted(call: Callable[[], str], settings: Mapping[str, Any]) -> str:
    """Return what a delivery returns, or its error in words."""
    try:
        why = call()
    except urllib.error.HTTPError as error:
        error.close()
        why = f"it answers status {error.code} {error.reason}"
    except ValueError:  # its text may have a part of the secret
        why = "the secret or the target has a character that cannot be sent"
    except (OSError, http.client.HTTPException, subprocess.SubprocessError) as error:
        cause = getattr(error, "reason", error)
        untrusted = getattr(cause, "verify_message", "")
        why = f"this Spark does not trust its certificate: {untrusted}" if untrusted else ""
        why = why or getattr(cause, "strerror", "") or str(cause) or type(cause).__name__
    beats = settings.get("heartbeat")
    for value, shown in ((settings.get("value"), "<masked>"), (settings.get("url"), settings["target"]), (beats, "it")):
        why = why.replace(value, shown) if value else why
    return clean(why, REASON_LENGTH)


def opener(*handlers: urllib.request.BaseHandler) -> urllib.request.OpenerDirector:
    return urllib.request.build_opener(NoRedirect, *handlers)


def answers(url: str, authority: str) -> bool:
    """Return False for a host that gives no answer at all. A status, a refused connection and another certificate are
    answers of a host that is on; of a frozen one the kernel alone takes the connection."""
    try:
        context = ssl.create_default_context(cafile=authority if os.path.exists(authority) else None)
        direct = (urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
        with opener(*direct).open(url, timeout=ANSWER_TIMEOUT_S):
            return True
    except urllib.error.HTTPError as error:
        error.close()
        return True
    except (OSError, http.client.HTTPException) as error:
        cause = getattr(error, "reason", error)
        return isinstance(cause, ssl.SSLError | ConnectionError | http.client.HTTPException)


def alerts(url: str) -> dict[str, Message] | None:
    """Return what Alertmanager holds and nobody has silenced, by keys of its own; None if it does not answer. What a
    Spark tells by itself is left out."""
    try:
        direct = opener(urllib.request.ProxyHandler({}))
        with direct.open(f"{url}/api/v2/alerts?silenced=false&inhibited=false", timeout=ANSWER_TIMEOUT_S) as answer:
            held = json.load(answer)
        return dict(_alert(one) for one in held if "told" not in one["labels"])
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
        return None


def _alert(one: Mapping[str, Any]) -> tuple[str, Message]:
    labels, texts = one["labels"], one["annotations"]
    words = (
        labels["alertname"],
        *(labels[name] for name in ("deployment", "proxy", "kind", "spark") if name in labels),
    )
    since = datetime.fromisoformat(one["startsAt"]).timestamp()
    fix = f"see docs/runbooks/{texts['runbook']}.md."
    return ALERT + " ".join(words), Message("alert", texts["summary"], "", since, labels.get("deployment", ""), fix=fix)


def document(message: Message) -> dict[str, Any]:
    """Return a message as a webhook gets it. Slack and Mattermost show its field `text`."""
    since = datetime.fromtimestamp(message.since, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"schema": SCHEMA, **message._asdict(), "since": since, "text": f"{message.what}. {message.text}"}


def post(message: Message, settings: Mapping[str, Any]) -> str:
    """Post a message to a URL. Returns nothing. Raises OSError and ValueError."""
    good = message.resolved or message.event == "test"
    if settings["kind"] == NTFY:
        body, headers = message.text.encode(), {"Title": clean(message.what), "Priority": "3" if good else "4"}
        headers |= {"Tags": "white_check_mark" if good else "warning", "Content-Type": "text/plain; charset=utf-8"}
    else:
        body, headers = json.dumps(document(message)).encode(), {"Content-Type": "application/json"}
    if "value" in settings:
        headers["Authorization"] = f"Bearer {settings['value']}"
    request = urllib.request.Request(settings["url"], body, headers)  # noqa: S310  deploy takes http and https alone
    with opener().open(request, timeout=HTTP_TIMEOUT_S):
        return ""


def run(message: Message, settings: Mapping[str, Any]) -> str:
    """Run a command with the message in its environment, and as text on stdin. The secret is a variable of its own
    name. Returns its error, empty for status 0. Raises OSError and SubprocessError."""
    fields = {f"VLLM_NOTIFY_{name.upper()}": str(value) for name, value in document(message).items()}
    secret = {settings["secret"]: settings["value"]} if "secret" in settings else {}
    done = subprocess.run(
        settings["command"],
        input=f"{message.what}\n\n{message.text}\n",
        env={"PATH": os.environ.get("PATH", os.defpath), **fields, **secret},
        timeout=COMMAND_TIMEOUT_S,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    output = (done.stderr.strip() or done.stdout.strip() or "it says nothing").splitlines()[-1]
    return f"it ended with status {done.returncode}: {output}" if done.returncode else ""
