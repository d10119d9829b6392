"""Errors of the hub's library as refusals. Every request of the hub runs inside `refusing`."""

from __future__ import annotations

import http
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import httpx2
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from vllm_spark.core.refusal import Fix, Refusal, RefusedError, register

HUB_LOGIN = register("hub-login", runbook="lock-model")
HUB_DOWN = register("hub-down", runbook="lock-model")
HUB_BUSY = register("hub-busy", runbook="lock-model")
HUB_REPLY = register("hub-reply", runbook="lock-model")


@dataclass(frozen=True, slots=True)
class Wording:
    """What an operator corrects if the repository is wrong, and the command that asks the hub again."""

    correct: str
    again: str


LOCK = Wording(correct="correct model.repository of the recipe", again="ansible-playbook lock.yml")


@contextmanager
def refusing(what: str, endpoint: str, wording: Wording = LOCK) -> Iterator[None]:
    """Convert every error of the library into a RefusedError. `what` is the repository of the request."""
    try:
        yield
    except GatedRepoError as error:
        raise RefusedError([_login(what, "is gated", wording)]) from error
    except RepositoryNotFoundError as error:
        raise RefusedError([_login(what, "does not exist, or is private", wording)]) from error
    except RevisionNotFoundError as error:
        raise RefusedError([_login(what, "does not have this commit", wording)]) from error
    except EntryNotFoundError as error:
        reason = "a file that it lists is not there (status 404)"
        raise RefusedError([reply(what, endpoint, reason, wording)]) from error
    except HFValidationError as error:
        raise RefusedError([_login(what, "is not the name of a repository", wording)]) from error
    except HfHubHTTPError as error:
        raise RefusedError([_status(what, endpoint, error.response, wording)]) from error
    # The library does not wrap the errors of its own HTTP client.
    except (OSError, httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise RefusedError([down(what, endpoint, _sentence(error), wording)]) from error
    # The library reads the fields of a reply without a check.
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        reason = f"its answer is not that of a hub ({type(error).__name__}: {_sentence(error)})"
        raise RefusedError([reply(what, endpoint, reason, wording)]) from error


def _sentence(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _status(what: str, endpoint: str, response: httpx2.Response, wording: Wording) -> Refusal:
    status = response.status_code
    if status in {http.HTTPStatus.UNAUTHORIZED, http.HTTPStatus.FORBIDDEN}:
        return _login(what, f"may not be read (status {status})", wording)
    if status == http.HTTPStatus.TOO_MANY_REQUESTS:
        after = response.headers.get("Retry-After", "")
        wait = f"{after} s" if after.isdigit() else "a few minutes"
        return HUB_BUSY(
            what=f"{what}: the hub at {endpoint} refuses more requests for now (status 429)",
            expected="a hub that answers",
            fix=Fix(wording.again, f"Wait {wait} first; HF_TOKEN raises the hub's limit."),
        )
    return down(what, endpoint, f"status {status}", wording)


def _login(what: str, state: str, wording: Wording) -> Refusal:
    return HUB_LOGIN(
        what=f"{what} {state}",
        expected="a repository of the hub that the token may read",
        fix=f"{wording.correct}; for a gated one accept its terms and set HF_TOKEN.",
    )


def down(what: str, endpoint: str, reason: str, wording: Wording = LOCK) -> Refusal:
    """Return the refusal of a hub that does not answer."""
    return HUB_DOWN(
        what=f"{what}: the hub at {endpoint} does not answer: {reason}",
        expected="a hub that this machine can reach",
        fix=Fix(wording.again, "It needs an answer of the hub; HF_ENDPOINT names another hub."),
    )


def reply(what: str, endpoint: str, reason: str, wording: Wording) -> Refusal:
    """Return the refusal of an answer that is not what was asked for."""
    return HUB_REPLY(
        what=f"{what}: the hub at {endpoint} sent what cannot be used: {reason}",
        expected="the files of a checkpoint, complete",
        fix=f"{wording.correct}, or name another commit; HF_ENDPOINT names another hub.",
    )
