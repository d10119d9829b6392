"""The registry client against a fake registry: indexes and manifests, tokens and logins, and every error.

molecule/images tests it against a real registry.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import loopback
from fakes.fake_http import Reply, Request, own_certificate, serving
from vllm_spark.core.refusal import RefusedError
from vllm_spark.node.pull.oci import INDEX_TYPE, MANIFEST_TYPES
from vllm_spark.pinning import registry, second_look
from vllm_spark.pinning.registry import Registry
from vllm_spark.pinning.resolution import Resolution

ARM, AMD = f"sha256:{'a' * 64}", f"sha256:{'b' * 64}"
CONFIG = f"sha256:{'c' * 64}"
IMAGE = "images.test/owner/engine"


def entry(digest: str, os: str, architecture: str) -> dict[str, Any]:
    return {"digest": digest, "platform": {"os": os, "architecture": architecture}}


INDEX = {
    "mediaType": INDEX_TYPE,
    "manifests": [
        entry(AMD, "linux", "amd64"),
        entry(ARM, "linux", "arm64"),
        entry(CONFIG, "unknown", "unknown"),  # BuildKit's entry for the provenance of the image
    ],
}
MANIFEST = {"mediaType": MANIFEST_TYPES[3], "config": {"digest": CONFIG}, "layers": []}
MANIFEST_DIGEST = f"sha256:{hashlib.sha256(json.dumps(MANIFEST).encode()).hexdigest()}"
RESPONSES: dict[str, Reply] = {
    "/v2/owner/engine/manifests/index": Reply(INDEX),
    "/v2/owner/engine/manifests/untyped": Reply({"manifests": INDEX["manifests"]}),
    "/v2/owner/engine/manifests/one": Reply(MANIFEST),
    f"/v2/owner/engine/blobs/{CONFIG}": Reply({"os": "linux", "architecture": "arm64"}),
    "/v2/owner/engine/manifests/only-amd": Reply({**INDEX, "manifests": INDEX["manifests"][:1]}),
    "/v2/owner/engine/manifests/old": Reply({"schemaVersion": 1, "fsLayers": []}),
    "/v2/owner/engine/manifests/html": Reply("<html>captive portal</html>"),
    "/v2/owner/engine/manifests/list": Reply([1]),
    "/v2/owner/engine/manifests/busy": Reply("too many requests", status=429),
    "/v2/owner/engine/manifests/secret": Reply("", status=403),
    "/v2/owner/engine/manifests/big": Reply("x" * (registry.MAX_BYTES + 1)),
}


def registry_response(path: str, headers: Mapping[str, str]) -> Reply:
    del headers
    return RESPONSES.get(path, Reply("not found", status=404))


# (tag, platforms) -> (digest, platform)
DIGESTS = {
    ("index", ("linux/arm64",)): (ARM, "linux/arm64"),
    ("index", ("linux/amd64", "linux/arm64")): (AMD, "linux/amd64"),
    ("untyped", ("linux/arm64",)): (ARM, "linux/arm64"),
    ("one", ("linux/arm64",)): (MANIFEST_DIGEST, "linux/arm64"),
    ("only-amd", ("linux/arm64", "linux/amd64")): (AMD, "linux/amd64"),
}


@pytest.mark.parametrize(("tag", "platforms"), DIGESTS)
def test_a_tag_resolves_to_the_digest_for_a_platform(tag: str, platforms: tuple[str, ...]) -> None:
    with serving(registry_response) as (url, requests):
        answer = Registry({"images.test": url}).resolve(IMAGE, tag, platforms)
    assert (answer.value, answer.platform) == DIGESTS[tag, platforms]
    assert answer.origin == "images.test"
    assert INDEX_TYPE in requests[0][1]["Accept"]


# tag -> (id of the refusal, a part of its message)
REFUSED = {
    "none": ("unknown-tag", "images.test/owner/engine:none is not in its registry (status 404)"),
    "only-amd": ("wrong-platform", "is for linux/amd64 — expected: linux/arm64"),
    "old": ("registry-answer", "is not an image"),
    "html": ("registry-answer", "captive portal"),
    "list": ("registry-answer", "expected: an index or a manifest"),
    "busy": ("registry-down", "answered status 429: too many requests"),
    "secret": ("registry-login", "requires a login"),
    "big": ("registry-down", "no whole response"),
}


@pytest.mark.parametrize("tag", REFUSED)
def test_another_response_is_refused_with_its_reason(tag: str) -> None:
    with serving(registry_response) as (url, _), pytest.raises(RefusedError) as refused:
        Registry({"images.test": url}).resolve(IMAGE, tag, ("linux/arm64",))
    (refusal,) = refused.value.refusals
    assert (refusal.id, REFUSED[tag][1] in str(refusal)) == (REFUSED[tag][0], True), str(refusal)


def test_a_registry_that_is_down_is_refused() -> None:
    with loopback.refusing_port() as port:
        url = f"http://127.0.0.1:{port}"
        with pytest.raises(RefusedError, match=r"does not answer at http://127.*[Cc]onnection refused.* Fix: "):
            Registry({"images.test": url}).resolve(IMAGE, "index", ("linux/arm64",))


def test_a_registry_that_sends_nothing_is_refused_at_the_deadline() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()  # accepts connections and sends nothing
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(RefusedError, match="does not answer"):
            Registry({"images.test": url}, deadline_s=0.3).resolve(IMAGE, "index", ("linux/arm64",))


@pytest.mark.parametrize("trusted", [True, False])
def test_a_registry_with_a_certificate_of_its_own(
    tmp_path: Path, trusted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """REQUESTS_CA_BUNDLE names it, as for pip."""
    context, certificate = own_certificate(tmp_path)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", certificate if trusted else "")
    with serving(registry_response, tls=context) as (url, _):
        source = Registry({"images.test": url.replace("http:", "https:")})
        if trusted:
            assert source.resolve(IMAGE, "index", ("linux/arm64",)).value == ARM
        else:
            with pytest.raises(RefusedError, match=r"does not answer at https://.* certificate"):
                source.resolve(IMAGE, "index", ("linux/arm64",))


@pytest.fixture
def login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Credentials of `docker login images.test` on this machine."""
    word = base64.b64encode(b"me:secret").decode()
    (tmp_path / "config.json").write_text(json.dumps({"auths": {"images.test": {"auth": word}}}))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))


@pytest.fixture
def no_login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without credentials."""
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))


def token_response(path: str, headers: Mapping[str, str]) -> Reply:
    """Respond like Docker Hub: a token for every client, and another for a client with a password."""
    if path.startswith("/token"):
        assert "service=hub" in path
        assert "scope=repository%3Aowner%2Fengine%3Apull" in path
        return Reply({"token": "for-me" if headers.get("Authorization", "").startswith("Basic ") else "for-all"})
    if headers.get("Authorization") not in {"Bearer for-all", "Bearer for-me"}:
        realm = f'Bearer realm="http://{headers["Host"]}/token",service="hub",scope="repository:owner/engine:pull"'
        return Reply("", status=401, headers={"WWW-Authenticate": realm})
    return registry_response(path, headers)


@pytest.mark.usefixtures("no_login")
def test_a_token_is_fetched_if_the_registry_requires_one() -> None:
    with serving(token_response) as (url, requests):
        assert Registry({"images.test": url}).resolve(IMAGE, "index", ("linux/arm64",)).value == ARM
    assert requests[-1][1]["Authorization"] == "Bearer for-all"


@pytest.mark.usefixtures("login")
def test_the_login_of_this_machine_is_used() -> None:
    with serving(token_response) as (url, requests):
        assert Registry({"images.test": url}).resolve(IMAGE, "one", ("linux/arm64",)).value == MANIFEST_DIGEST
    assert requests[-1][1]["Authorization"] == "Bearer for-me"
    assert not any("secret" in path for path, _ in requests)


# A token service's reply without a token that a header can carry.
NO_TOKEN = {
    "no token": {"expires_in": 300},
    "null": {"token": None},
    "a line end": {"token": "a\r\nHost: evil"},
    "list": [1],
}


@pytest.mark.usefixtures("no_login")
@pytest.mark.parametrize("name", NO_TOKEN)
def test_a_token_service_without_a_token_is_refused(name: str) -> None:
    def respond(path: str, headers: Mapping[str, str]) -> Reply:
        if path.startswith("/token"):
            return Reply(NO_TOKEN[name])
        realm = f'Bearer realm="http://{headers["Host"]}/token",service="hub"'
        return Reply("", status=401, headers={"WWW-Authenticate": realm})

    with serving(respond) as (url, requests), pytest.raises(RefusedError, match="which gives no token") as refused:
        Registry({"images.test": url}).resolve(IMAGE, "one", ("linux/arm64",))
    assert [item.id for item in refused.value.refusals] == ["token-service"]
    assert [headers.get("Authorization") for _, headers in requests] == [None, None]


@pytest.mark.parametrize("length", ["5000000", "900"])
def test_a_response_that_ends_early_is_refused(length: str) -> None:
    reply = Reply(json.dumps(INDEX), headers={"Content-Length": length, "Connection": "close"})
    with serving(lambda *_: reply) as (url, _), pytest.raises(RefusedError, match=r"does not answer at .* early"):
        Registry({"images.test": url}).resolve(IMAGE, "index", ("linux/arm64",))


@pytest.mark.usefixtures("login")
@pytest.mark.parametrize("realm", ["https://evil.test/token", "file:///etc/hostname#"])
def test_the_login_of_this_machine_stays_with_the_site_of_the_registry(realm: str) -> None:
    def respond(path: str, headers: Mapping[str, str]) -> Reply:
        return Reply("", status=401, headers={"WWW-Authenticate": f'Bearer realm="{realm}",service="hub"'})

    with serving(respond) as (url, requests), pytest.raises(RefusedError, match=r"token service .* Fix: ") as refused:
        Registry({"images.test": url}).resolve(IMAGE, "one", ("linux/arm64",))
    assert [item.id for item in refused.value.refusals] == ["token-service"]
    assert len(requests) == 1


def password_response(path: str, headers: Mapping[str, str]) -> Reply:
    """Respond like a registry with basic authentication."""
    if headers.get("Authorization") != f"Basic {base64.b64encode(b'me:secret').decode()}":
        return Reply("", status=401, headers={"WWW-Authenticate": 'Basic realm="home"'})
    return registry_response(path, headers)


@pytest.mark.usefixtures("login")
def test_a_password_is_sent_if_the_registry_requires_it() -> None:
    with serving(password_response) as (url, _):
        assert Registry({"images.test": url}).resolve(IMAGE, "index", ("linux/arm64",)).value == ARM


@pytest.mark.usefixtures("no_login")
def test_without_a_login_the_refusal_names_docker_login() -> None:
    with (
        serving(password_response) as (url, _),
        pytest.raises(RefusedError, match=r"requires a login.* Fix: docker login"),
    ):
        Registry({"images.test": url}).resolve(IMAGE, "index", ("linux/arm64",))


def second_of(replies: Mapping[str, Reply], key: str = f"{IMAGE}:index") -> tuple[Resolution, list[Request]]:
    """Return the digest of `index` after a second registry with these replies was asked, and what it was asked."""
    first = Resolution(ARM, "images.test", "linux/arm64")
    with serving(lambda path, _: replies.get(path, Reply("", status=404))) as (url, requests):
        return second_look.confirmed(key, first, {"images.test": url}), list(requests)


@pytest.mark.usefixtures("login")
def test_a_digest_of_two_registries_names_both_and_the_second_gets_no_login() -> None:
    answer, requests = second_of(RESPONSES)
    assert (answer.value, answer.note) == (ARM, "")
    assert re.fullmatch(r"images\.test and 127\.0\.0\.1:\d+", answer.origin)
    assert [path for path, _ in requests] == ["/v2/owner/engine/manifests/index"]
    assert not any("Authorization" in headers for _, headers in requests)


def test_two_digests_of_one_tag_are_refused_with_both() -> None:
    other = {"manifests": [entry(CONFIG, "linux", "arm64")]}
    with pytest.raises(RefusedError) as refused:
        second_of({"/v2/owner/engine/manifests/index": Reply(other)})
    (refusal,) = refused.value.refusals
    assert refusal.id == "two-digests"
    assert f"is {ARM} at images.test and {CONFIG} at 127.0.0.1" in refusal.what


# replies of the second registry -> a part of the note
UNKNOWN: dict[str, tuple[Mapping[str, Reply], str]] = {
    "not there": ({}, "is not in its registry (status 404)"),
    "busy": ({"/v2/owner/engine/manifests/index": Reply("", status=429)}, "answered status 429"),
    "another platform": (
        {"/v2/owner/engine/manifests/index": RESPONSES["/v2/owner/engine/manifests/only-amd"]}, "is for linux/amd64",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", UNKNOWN)
def test_a_second_registry_that_does_not_know_is_named(name: str) -> None:
    replies, reason = UNKNOWN[name]
    answer, _ = second_of(replies)
    assert answer.origin == "images.test"
    assert answer.note.startswith(" (seen by images.test alone; of 127.0.0.1:")
    assert reason in answer.note


def test_a_second_registry_whose_address_is_no_url_is_named() -> None:
    first = Resolution(ARM, "images.test", "linux/arm64")
    answer = second_look.confirmed(f"{IMAGE}:index", first, {"images.test": "https://[::1"})
    assert (answer.value, answer.origin) == (ARM, "images.test")
    assert answer.note.startswith(" (seen by images.test alone; of [::1: ")


def test_a_registry_without_a_second_one_is_named() -> None:
    answer, requests = second_of(RESPONSES, "other.test/owner/engine:index")
    assert "(seen by other.test alone: vllm_second_registries names no second registry for it)" in answer.note
    assert requests == []


# image of a recipe -> the name that Docker resolves it to
NAMES = {
    "vllm/vllm-openai": "docker.io/vllm/vllm-openai:v1",
    "registry": "docker.io/library/registry:v1",
    "registry:5000/vllm-spark/engine": "registry:5000/vllm-spark/engine:v1",
    "ghcr.io/owner/deep/name": "ghcr.io/owner/deep/name:v1",
}


@pytest.mark.parametrize("image", NAMES)
def test_names_are_resolved_like_docker_does(image: str) -> None:
    with loopback.refusing_port() as port:
        url = f"http://127.0.0.1:{port}"
        hosts = dict.fromkeys(("docker.io", "registry:5000", "ghcr.io"), url)
        with pytest.raises(RefusedError) as refused:
            Registry(hosts).resolve(image, "v1", ("linux/arm64",))
    assert f"the registry of {NAMES[image]} does not answer" in str(refused.value)
