"""The action vllm_edge: what it sends to the host, once, and what it shows the operator, once."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from ansible import constants

from fakes import edge_cases, fake_ansible
from fakes.cases import resolved
from fakes.fake_ansible import FakeRun
from vllm_spark.edge import authority, persons, steps, store

NOTHING = {"program": True, "account": False, "files": {}, "certificate": "", "keys": [], "unit": {}, "route": {}}
RESULT = {"steps": ["files"], "changed": True}


@pytest.fixture
def run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    monkeypatch.setattr(constants.config, "get_config_value", lambda _: str(folder))
    return folder


def run(facts: dict[str, Any], settings: dict[str, Any] | None = None, host: str = "spark1", **more: Any) -> FakeRun:
    spec = edge_cases.resolved([edge_cases.DEMO], {"open": False, **(settings or {})})
    hostvars = {
        "spark_precheck_resolved": {"spec": spec.to_json()},
        "spark_precheck_box": {"facts": {"edge": facts}},
        "ansible_host": "192.168.1.20",
        "spark_lock_verb": "deploy",
    }
    return FakeRun(host=host, hostvars={host: hostvars}, modules={"vllm_edge_files": RESULT}, **more)


def arguments(tmp_path: Path) -> dict[str, Any]:
    return {"authority": str(tmp_path / "edge"), "new_authority": False}


@pytest.mark.usefixtures("run_folder")
def test_a_first_deploy_sends_everything_and_shows_one_key(tmp_path: Path) -> None:
    first, second = run(NOTHING), run(NOTHING)
    for each in (first, second):
        each.act("vllm_edge", **arguments(tmp_path))
    ((module, sent),) = first.calls
    assert module == "vllm_edge_files"
    assert "BEGIN CERTIFICATE" in sent["certificate"]
    assert "BEGIN PRIVATE KEY" in sent["private_key"]
    shown = first.lines[-1].rpartition("VLLM_KEY=")[2]
    assert first.lines[-1] == f"spark1  your key, shown only now: export VLLM_KEY={shown}"
    assert sent["first_keys"] == {persons.key_hash(shown): persons.OWNER}
    assert shown not in str(sent)
    assert "PRIVATE" not in "".join(first.lines)
    # The other Sparks of the run get the same key.
    assert second.calls[0][1]["first_keys"] == sent["first_keys"]


# The keys of the site's other hosts, None for a host that the run has not read -> (keys here, what the operator reads).
ELSEWHERE: dict[str, tuple[dict[str, dict[str, str] | None], dict[str, str] | None, str]] = {
    "one host has keys": (
        {"spark2": {"a1": "ada", "b1": "owner/switch"}, "spark3": {}},
        {"a1": "ada", "b1": "owner/switch"},
        "the keys of spark2 are valid here too: ada, owner",
    ),
    "two have different ones": (
        {"spark2": {"a1": "ada/switch"}, "spark3": {"a1": "ada", "c1": "owner"}},
        {"a1": "ada", "c1": "owner"},
        "the keys of spark2, spark3 are valid here too: ada, owner",
    ),
    "one of two is read": (
        {"spark2": {"a1": "ada"}, "spark3": None},
        {"a1": "ada"},
        "the keys of spark2 are valid here too: ada",
    ),
    "nobody has a key": ({"spark2": {}, "spark3": {}}, None, "your key, shown only now"),
    "a run of this host alone": (
        {"spark2": None, "spark3": None},
        None,
        "this run has not read spark2, spark3, so keys from there are not valid here",
    ),
}


@pytest.mark.usefixtures("run_folder")
@pytest.mark.parametrize("check_mode", [False, True])
@pytest.mark.parametrize("name", ELSEWHERE)
def test_a_host_of_a_site_takes_keys_over(
    name: str, check_mode: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fake_ansible, "HOSTS", list(edge_cases.SPARKS))
    elsewhere, keys, said = ELSEWHERE[name]
    joined = run(NOTHING, check_mode=check_mode)
    site = edge_cases.resolved([edge_cases.DEMO, edge_cases.REPLICA], {"open": False, "site": edge_cases.SITE})
    joined.hostvars["spark1"]["spark_precheck_resolved"] = {"spec": site.to_json()}
    for other, hashes in elsewhere.items():
        box = {} if hashes is None else {"facts": {"edge": {"key_hashes": hashes}}}
        joined.hostvars[other] = {"spark_precheck_box": box}
    joined.act("vllm_edge", **arguments(tmp_path))
    ((_, sent),) = joined.calls
    if check_mode:
        said = said.replace(" are valid", " would be valid") if keys else ""
    assert said in joined.lines[-1]
    assert (sent.get("first_keys") == keys) == (keys is not None or check_mode)
    assert (keys is None and not check_mode) == ("VLLM_KEY=sk-spark-" in "".join(joined.lines))


@pytest.mark.usefixtures("run_folder")
def test_without_a_site_each_host_keeps_its_own_keys(tmp_path: Path) -> None:
    alone = run(NOTHING)
    alone.hostvars["spark2"] = {"spark_precheck_box": {"facts": {"edge": {"key_hashes": {"a1": "ada"}}}}}
    alone.act("vllm_edge", **arguments(tmp_path))
    assert list(alone.calls[0][1]["first_keys"].values()) == [persons.OWNER]
    assert "VLLM_KEY=sk-spark-" in alone.lines[-1]


def worker(**more: Any) -> FakeRun:
    """Return a run on spark2, which is a worker of spark1 and has an edge because of an inactive deployment."""
    deployments = [
        {"name": "pair", "recipe": "two-sparks", "hosts": ["spark1", "spark2"]},
        {"name": "second", "recipe": "everything", "hosts": ["spark2"], "active": False},
    ]
    specs = resolved({"deployments": deployments, "edge": {"open": False}, "limit": ["spark1", "spark2"]}, "spark2")
    second = run(NOTHING, host="spark2", **more)
    second.hostvars["spark2"]["spark_precheck_resolved"] = {"spec": specs["spark2"].to_json()}
    return second


@pytest.mark.usefixtures("run_folder")
@pytest.mark.parametrize("hashes", [{}, {"a1": "ada/switch", "f0": "owner"}])
def test_a_worker_prints_no_key_and_has_those_of_its_head(hashes: dict[str, str], tmp_path: Path) -> None:
    second = worker()
    second.hostvars["spark1"] = {"spark_precheck_box": {"facts": {"edge": {"key_hashes": hashes}}}}
    second.act("vllm_edge", **arguments(tmp_path))
    keys = second.calls[0][1]["first_keys"]
    assert "VLLM_KEY" not in "".join(second.lines)
    if hashes:
        # The right to start models is one of the Spark on which it was given.
        assert keys == {"a1": "ada", "f0": "owner"}
        assert "the keys of spark1 are valid here too: ada, owner" in second.lines[-1]
    else:
        first = run(NOTHING)
        first.act("vllm_edge", **arguments(tmp_path))
        assert first.calls[0][1]["first_keys"] == keys
        assert first.lines[-1].startswith("spark1  your key, shown only now")


@pytest.mark.usefixtures("run_folder")
def test_a_spark_that_joins_a_site_names_the_keys_that_differ(tmp_path: Path) -> None:
    lines = []
    for host in ("spark1", "spark2"):
        joined = run({**NOTHING, "keys": ["owner"]}, host=host)
        site = edge_cases.resolved(
            [edge_cases.DEMO, edge_cases.REPLICA], {"open": False, "site": edge_cases.SITE}, host=host
        )
        for number, other in enumerate(("spark1", "spark2")):
            facts = {**NOTHING, "keys": ["owner"], "key_hashes": {f"{number}" * 64: "owner", "a" * 64: "ada"}}
            box = {"spark_precheck_box": {"facts": {"edge": facts}}}
            joined.hostvars[other] = {**joined.hostvars.get(other, {}), **box}
        joined.hostvars[host]["spark_precheck_resolved"] = {"spec": site.to_json()}
        joined.act("vllm_edge", **arguments(tmp_path))
        lines += [line for line in joined.lines if "different keys" in line]
    assert lines == [
        "spark1  owner has 2 different keys: 00000000 on spark1, 11111111 on spark2. "
        "Fix: vllm-spark key add owner. It gives one key for all."
    ]


@pytest.mark.usefixtures("run_folder")
def test_an_edge_of_a_site_gets_the_authority_that_it_trusts(tmp_path: Path) -> None:
    site = edge_cases.resolved([edge_cases.DEMO, edge_cases.REPLICA], {"open": False, "site": edge_cases.SITE})
    joined, alone = run(NOTHING), run(NOTHING)
    joined.hostvars["spark1"]["spark_precheck_resolved"] = {"spec": site.to_json()}
    for each in (joined, alone):
        each.act("vllm_edge", **arguments(tmp_path))
    own = store.read(tmp_path / "edge")
    assert own is not None
    # A Spark alone has it too: `status` shows its end.
    assert [each.calls[0][1]["authority"] for each in (joined, alone)] == [own.certificate] * 2
    names = ["spark1"]
    assert [
        authority.renewal_reason(each.calls[0][1]["certificate"], own.certificate, names, datetime.now(UTC), asks=True)
        for each in (joined, alone)
    ] == ["", "the other edges of the site would refuse the certificate"]


@pytest.mark.usefixtures("run_folder")
def test_check_mode_makes_no_authority_and_no_key(tmp_path: Path) -> None:
    checked = run(NOTHING, check_mode=True)
    checked.act("vllm_edge", **arguments(tmp_path))
    assert not (tmp_path / "edge").exists()
    ((_, sent),) = checked.calls
    assert set(sent) == set(steps.ARGUMENTS.values())
    assert checked.lines == [
        "spark1  the edge would be installed: https on 0.0.0.0:8000",
        "spark1  the edge would be given a new certificate: there is none",
    ]


@pytest.mark.usefixtures("run_folder")
def test_a_host_with_a_foreign_certificate_needs_the_authority(tmp_path: Path) -> None:
    refused = run({**NOTHING, "certificate": "-----BEGIN CERTIFICATE-----"})
    with pytest.raises(Exception, match="has no authority"):
        refused.act("vllm_edge", **arguments(tmp_path))
    assert refused.calls == []
    refused.act("vllm_edge", **{**arguments(tmp_path), "new_authority": True})
    assert store.read(tmp_path / "edge") is not None


@pytest.mark.usefixtures("run_folder")
def test_the_authority_may_sign_every_spark_of_the_inventory_and_no_more(tmp_path: Path) -> None:
    first, asked = run(NOTHING), {**arguments(tmp_path), "passphrase": "correct horse"}
    first.hostvars["spark2"] = {"ansible_host": "far.example", "vllm_edge": {"names": ["ai.example"]}}
    first.act("vllm_edge", **asked)
    sent = first.calls[0][1]
    (signer,) = authority.certificates(sent["authority"])
    wanted = ["spark1", "spark2", "far.example", "ai.example", "192.168.1.20"]
    assert authority.outside(signer, [*wanted, "other.example"]) == ["other.example"]
    assert "ENCRYPTED" in (tmp_path / "edge" / "ca.key").read_text()
    # A later deploy of a new Spark lets it sign more. Clients of the other one need nothing.
    placed = {**NOTHING, **{name: sent[name] for name in ("certificate", "names_certificate", "authority")}}
    second = run(placed)
    second.hostvars["spark2"] = {"ansible_host": "farther.example", "vllm_edge": None}
    second.act("vllm_edge", **asked)
    assert "certificate" not in second.calls[0][1]
    said = (
        "the site's authority has a new certificate. Fix: vllm-spark trust ca.crt. Clients that ask for new names need"
    )
    assert said in "".join(second.lines)
    # A new name of a Spark whose clients have the old certificate is their concern.
    third = run(placed, {"names": ["other.example"]})
    for check_mode in (True, False):
        third.check_mode = check_mode
        with pytest.raises(Exception, match=r"refuse a certificate with other\.example"):
            third.act("vllm_edge", **asked)
    third.act("vllm_edge", **{**asked, "new_authority": True})
    (signer,) = authority.certificates(third.calls[0][1]["authority"])
    assert authority.outside(signer, ["other.example"]) == []


@pytest.mark.usefixtures("run_folder")
@pytest.mark.parametrize("check_mode", [True, False])
def test_a_deploy_after_the_end_of_the_authority_says_what_clients_need(tmp_path: Path, check_mode: bool) -> None:
    past = datetime.now(UTC) - timedelta(days=3651)
    old = store.read_or_create(tmp_path / "edge", past, "", ["spark1"])
    placed = {**NOTHING, "certificate": authority.new_certificate(old, ["spark1"], past).certificate}
    late = run({**placed, "authority": old.certificate}, check_mode=check_mode)
    late.act("vllm_edge", **arguments(tmp_path))
    ends = authority.certificates(late.calls[0][1]["certificate"])[0].not_valid_after_utc
    assert ends > datetime.now(UTC) + timedelta(days=800)
    assert "the certificate is not of this site's authority" in "".join(late.lines)
    assert "new certificate. Fix: vllm-spark trust ca.crt. Every client needs it now." in "".join(late.lines)
    assert (store.trusted(tmp_path / "edge") == old.certificate) == check_mode


@pytest.mark.usefixtures("run_folder")
@pytest.mark.parametrize(
    ("deploys", "age", "line"),
    [
        ((), 2921, "another authority of the site signs from "),
        ((2921,), 3300, "another authority of the site signs now"),
        ((2921, 3300), 3651, "the edge will be"),  # the one that has ended goes
    ],
)
def test_clients_hear_once_of_the_authority_that_follows(
    deploys: tuple[int, ...], age: int, line: str, tmp_path: Path
) -> None:
    """`age` of the first authority in days, and its age at earlier deploys."""
    born = datetime.now(UTC) - timedelta(days=age)
    names = ["spark1", "spark1.local", "spark2", "spark2.local", "192.168.1.20"]
    for number in (0, *deploys):
        site = store.read_or_create(tmp_path / "edge", born + timedelta(days=number), "", names)
    made_at = born + timedelta(days=max((2600, *deploys)))
    leaf = authority.new_certificate(site, [*names, "localhost", "127.0.0.1"], made_at)
    due = run({**NOTHING, "certificate": leaf.certificate, "authority": site.certificate})
    due.act("vllm_edge", **arguments(tmp_path))
    said = "".join(due.lines)
    assert line in said
    assert ("vllm-spark trust" in said) == (not deploys)


@pytest.mark.usefixtures("run_folder")
def test_an_edge_as_planned_is_not_asked(tmp_path: Path) -> None:
    from test_edge_steps import as_planned, closed  # noqa: PLC0415

    edge = closed(tls="off")
    quiet = run({})
    quiet.hostvars["spark1"]["spark_precheck_resolved"] = {"spec": None, "edge": edge.to_json()}
    quiet.hostvars["spark1"]["spark_precheck_box"] = {"facts": {"edge": as_planned(edge)}}
    quiet.act("vllm_edge", **arguments(tmp_path))
    assert (quiet.calls, quiet.lines) == ([], [])


def test_an_open_site_only_stops_it() -> None:
    stopped = run(NOTHING)
    stopped.act("vllm_edge", state="stopped")
    assert stopped.calls == [("vllm_edge_files", {"state": "stopped"})]
