"""The login of a Spark at a registry: what a challenge of a local HTTP server makes `Upstream` send and report."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fakes.fake_http import Reply, serving
from vllm_spark.node.pull import upstream
from vllm_spark.node.pull.oci import BlobError
from vllm_spark.node.pull.upstream import Upstream

PATH = "/v2/owner/engine/manifests/v1"
WORD = base64.b64encode(b"me:secret").decode()


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of `docker login` of this user; without a login."""
    file = tmp_path / "config.json"
    monkeypatch.setattr(upstream, "DOCKER_CONFIG", file)
    return file


@pytest.fixture
def login(config: Path) -> None:
    config.write_text(json.dumps({"auths": {"images.test": {"auth": WORD}}}))


# Path and Authorization of each request.
Seen = list[tuple[str, str]]


@pytest.fixture
def seen() -> Seen:
    return []


def ask(seen: Seen, challenge: str, token: Any = None, accepts: str = "Bearer for-me") -> str:
    """Return the body that a registry with this challenge gave. Raises BlobError.

    `token` is the reply of its token service. HOST in the challenge is the registry."""

    def respond(path: str, headers: Mapping[str, str]) -> Reply:
        seen.append((path, headers.get("Authorization", "")))
        if path.startswith("/token"):
            return token if isinstance(token, Reply) else Reply(token)
        if headers.get("Authorization") == accepts:
            return Reply("the manifest")
        return Reply(status=401, headers={"WWW-Authenticate": challenge.replace("HOST", headers["Host"])})

    with serving(respond) as (url, _):
        upstream = Upstream(url, "owner/engine", "images.test")
        with upstream.open("manifests", "v1") as response:
            return response.read().decode()


# challenge -> query of the token service
BEARER = {
    'Bearer realm="http://HOST/token",service="hub",scope="registry:a:*"': "service=hub&scope=registry%3Aa%3A%2A",
    'bearer realm="http://HOST/token",service=hub': "service=hub&scope=repository%3Aowner%2Fengine%3Apull",
    'Bearer realm="http://HOST/token"': "scope=repository%3Aowner%2Fengine%3Apull",
    'Bearer realm="http://HOST/token",scope=""': "scope=repository%3Aowner%2Fengine%3Apull",
    'Bearer realm="http://HOST/token?account=me", service="a, b"': (
        "account=me&service=a%2C+b&scope=repository%3Aowner%2Fengine%3Apull"
    ),
}


@pytest.mark.parametrize("challenge", BEARER)
@pytest.mark.parametrize(
    "reply", [{"token": "for-me"}, {"access_token": "for-me"}, {"token": "", "access_token": "for-me"}]
)
def test_a_token_is_fetched_without_a_login(challenge: str, reply: dict[str, str], seen: Seen) -> None:
    assert ask(seen, challenge, reply) == "the manifest"
    assert seen == [(PATH, ""), (f"/token?{BEARER[challenge]}", ""), (PATH, "Bearer for-me")]


@pytest.mark.usefixtures("login")
def test_the_login_goes_to_the_token_service_and_not_to_the_registry(seen: Seen) -> None:
    ask(seen, 'Bearer realm="http://HOST/token",service="hub"', {"token": "for-me"})
    assert [word for _, word in seen] == ["", f"Basic {WORD}", "Bearer for-me"]


@pytest.mark.usefixtures("login")
def test_the_login_is_sent_for_a_basic_challenge(seen: Seen) -> None:
    ask(seen, 'Basic realm="home"', accepts=f"Basic {WORD}")
    assert seen == [(PATH, ""), (PATH, f"Basic {WORD}")]


@pytest.mark.usefixtures("login")
@pytest.mark.parametrize(
    ("challenges", "accepts"),
    [
        (('Basic realm="home"', 'Bearer realm="http://HOST/token"'), "Bearer for-me"),
        (('Bearer realm="http://HOST/token"', 'Basic realm="home"'), "Bearer for-me"),
        (("Negotiate", 'Basic realm="home"'), f"Basic {WORD}"),
    ],
)
@pytest.mark.parametrize("between", [", ", "\n"], ids=["one header", "two headers"])
def test_of_several_challenges_one_that_can_be_met_is_answered(
    challenges: tuple[str, str], accepts: str, between: str, seen: Seen
) -> None:
    assert ask(seen, between.join(challenges), {"token": "for-me"}, accepts) == "the manifest"
    assert seen[-1] == (PATH, accepts)


@pytest.mark.parametrize(
    "challenge",
    ["", "Bearer", "Bearer realm=", 'Bearer service="hub"', 'Basic realm="home"', "Negotiate", '\t, ,="', "x" * 5000],
)
def test_a_challenge_that_cannot_be_met_is_reported(challenge: str, seen: Seen) -> None:
    with pytest.raises(BlobError, match=r"requires the login .*, and this host has none") as raised:
        ask(seen, challenge)
    assert len(str(raised.value)) < 300


@pytest.mark.usefixtures("login")
@pytest.mark.parametrize("realm", ["https://evil.test/token", "file:///etc/hostname", "http://localhost:1/token", "x"])
def test_another_token_service_is_not_asked(realm: str, seen: Seen) -> None:
    with pytest.raises(BlobError, match=r"the token service .* (is not of the site|does not use https)"):
        ask(seen, f'Bearer realm="{realm}"')
    assert seen == [(PATH, "")]


# What a token service may reply in place of a token.
NO_TOKEN = {
    "empty": "",
    "text": "<html>",
    "list": [1],
    "null": "null",
    "no token": {"expires_in": 300},
    "a list as token": {"token": ["a"]},
    "a line end in the token": {"token": "a\r\nHost: evil"},
    "deep": "[" * 100_000,
    "no text": b"\xff\xfe\x00",
    "over-long": {"token": "a" * (upstream.MAX_REPLY_BYTES + 1)},
    "over-long with a token in front": b'{"token": "for-me"}' + b" " * upstream.MAX_REPLY_BYTES,
}


@pytest.mark.parametrize("name", NO_TOKEN)
def test_a_reply_without_a_token_is_reported(name: str, seen: Seen) -> None:
    with pytest.raises(BlobError, match=r"the token service .* gives no token"):
        ask(seen, 'Bearer realm="http://HOST/token"', NO_TOKEN[name])


@pytest.mark.parametrize("status", [401, 403, 404, 429, 500])
def test_a_token_service_that_refuses_is_reported(status: int, seen: Seen) -> None:
    with pytest.raises(BlobError, match=f"answers {status}"):
        ask(seen, 'Bearer realm="http://HOST/token"', Reply("no", status=status))


def test_a_token_that_the_registry_rejects_is_not_fetched_twice(seen: Seen) -> None:
    with pytest.raises(BlobError, match="answers 401"):
        ask(seen, 'Bearer realm="http://HOST/token"', {"token": "another"})
    assert len(seen) == 3


@pytest.mark.usefixtures("login")
def test_the_login_does_not_follow_a_redirect_of_the_token_service(seen: Seen) -> None:
    with serving(lambda *_: Reply({"token": "for-me"})) as (other, elsewhere):
        ask(seen, 'Bearer realm="http://HOST/token"', Reply(status=307, headers={"Location": f"{other}/token"}))
    assert [headers.get("Authorization") for _, headers in elsewhere] == [None]
