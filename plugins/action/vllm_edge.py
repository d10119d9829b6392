"""Install the edge of this host as planned. vllm_spark.edge decides; the module vllm_edge_files works on the host."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, cast

from ansible import constants

from vllm_spark.core import inventory_host
from vllm_spark.core.types import EdgeFacts
from vllm_spark.edge import authority, config, lifetime, persons, steps, store, succession
from vllm_spark.edge.authority import KeyPair
from vllm_spark.edge.succession import Authority
from vllm_spark.inventory.edge import FILES, OFF, OWN_CA
from vllm_spark.inventory.host_edge import Edge
from vllm_spark.inventory.intent import HostIntent
from vllm_spark_ansible import results
from vllm_spark_ansible.action import SparkAction
from vllm_spark_ansible.resolved import intent_of


class ActionModule(SparkAction):
    arguments: ClassVar = {
        # `stopped` is for the edge of a site that is open. Without a state the edge is installed.
        "state": {"type": "str", "choices": ["present", "stopped"]},
        # The folder of the site's authority on the controller. Needed unless `state=stopped`.
        "authority": {"type": "str"},
        # Whether clients may need the authority's certificate again after this run. A new authority may then replace
        # one that is on another controller, and the present one sign more names. Needed unless `state=stopped`.
        "new_authority": {"type": "bool"},
        "passphrase": {"type": "str"},  # The passphrase of the authority's key. Empty for a key without one.
    }

    _supports_diff = True
    quiet = True

    def act(self) -> dict[str, Any]:
        if self.args.get("state") == "stopped":
            return self.execute("vllm_edge_files", {"state": "stopped"}, "steps")
        # The plan has an edge, so the host has one.
        intent = cast("HostIntent", intent_of(self.host, self.hostvars[self.host]))
        edge = cast("Edge", intent.edge)
        found = self.result(results.FACTS)["edge"]
        address = inventory_host.address(self.host, self.task_vars)
        names = list(dict.fromkeys(config.names(edge, address)))
        now = datetime.now(UTC)
        signer = self._signer(edge, found, names, now)
        planned = steps.steps(edge, found, address, signer.certificate if signer else "", now)
        if planned.settled:
            return {"steps": []}
        self.say(*steps.lines(planned, edge, acts=self.acts), *self._new_trust(found, signer))
        args: dict[str, Any] = {**planned.texts, **planned.switch}
        if planned.renewal and signer:
            own = edge.settings.tls == OWN_CA
            pair = authority.new_certificate(signer, names, now, asks=edge.joins) if own else signer
            args |= asdict(pair)
        if edge.settings.tls == OWN_CA and signer:
            args["authority"] = signer.certificate
        lines = (
            self._first_keys(edge, persons.head_of(intent), args) if planned.first_key else self._different_keys(edge)
        )
        done = self.execute("vllm_edge_files", args, "steps")
        self.say(*lines)
        return done

    def _first_keys(self, edge: Edge, head: str, args: dict[str, Any]) -> list[str]:
        """Add the keys of a host without keys to the arguments of the module, and return what the operator reads
        afterwards: keys of the other hosts of the site, or a new one. A new one that a worker shares with its head is
        shown by the head."""
        site = persons.of_site(edge, head, self._edges())
        if site.hashes:
            args["first_keys"] = dict(site.hashes)
            verb = "are" if self.acts else "would be"
            return [f"the keys of {', '.join(site.sources)} {verb} valid here too: {', '.join(site.persons)}"]
        if self.check_mode:
            return []
        key = self._new_key()
        args["first_keys"] = {persons.key_hash(key): persons.OWNER}
        lines = [] if head else [f"your key, shown only now: export VLLM_KEY={key}"]
        if site.unread:
            lines.append(
                f"this run has not read {', '.join(site.unread)}, so keys from there are not valid here. "
                "Fix: vllm-spark key add NAME. It gives a person one key for all hosts."
            )
        return lines

    def _different_keys(self, edge: Edge) -> list[str]:
        """Return lines about persons whose key is not the same on all hosts of a site. Its first host says them."""
        found = self._edges() if edge.joins else {}
        known = {host: found[host]["key_hashes"] for host in edge.settings.site if host in found}
        if edge.host != next(iter(known), ""):
            return []
        return persons.different({host: persons.shown(hashes) for host, hashes in known.items()})

    def _edges(self) -> dict[str, EdgeFacts]:
        """Return by host the facts of each edge that this run has read."""
        read = self.having(results.FACTS, self.play_hosts_all)
        return {host: facts["edge"] for host, facts in read.items() if facts.get("edge")}

    def _new_trust(self, found: Mapping[str, Any], signer: KeyPair | None) -> list[str]:
        """Return the line about what clients trust, if this host does not have all of it."""
        placed = authority.certificates(found.get("authority", ""))
        now = authority.certificates(signer.certificate) if isinstance(signer, Authority) else []
        if not placed or all(one in placed for one in now):
            return []
        if at := succession.awaited("".join(map(authority.pem, now))):
            return [lifetime.followed(at)]
        known = any(one.public_key() == now[0].public_key() for one in placed)
        who = "Clients that ask for new names need it" if known else "Every client needs it now"
        return [f"the site's authority has a new certificate. Fix: vllm-spark trust ca.crt. {who}."]

    def _signer(self, edge: Edge, found: Mapping[str, Any], names: list[str], now: datetime) -> KeyPair | None:
        """Return the site's authority or the owner's own certificate; None without TLS, and in check mode before there
        is an authority."""
        if edge.settings.tls == OFF:
            return None
        if edge.settings.tls == FILES:
            return store.read_files(edge.settings.certificate, edge.settings.private_key, names, now)
        folder, present = Path(self.args["authority"]), found["certificate"]
        if present and not self.args["new_authority"]:
            store.refuse_strangers(found.get("authority", ""), names)
        known, passphrase = [*names, *self._inventory_names()], self.args.get("passphrase", "")
        if self.check_mode:
            site = store.read(folder, passphrase)
            return succession.kept(site, known, now) if site else None
        return store.read_or_create(folder, now, "" if self.args["new_authority"] else present, known, passphrase)

    def _inventory_names(self) -> Iterator[str]:
        """Yield the names and addresses of every Spark of the inventory, also of those that this run leaves out."""
        for host in self.task_vars["groups"]["sparks"]:
            known = self.hostvars[host]
            yield from config.own_names(host, inventory_host.address(host, known))
            settings = known.get("vllm_edge")
            yield from settings.get("names", []) if isinstance(settings, Mapping) else []

    def _new_key(self) -> str:
        """Return the key of this run, the same for all of its hosts: the first of their processes draws it. The others
        find it in the temporary folder of the run, which only this user reads and which ends with the run."""
        # Ansible sets its constants when it is imported; get_config_value would return an unresolved template.
        file = Path(vars(constants)["DEFAULT_LOCAL_TMP"]) / "first-edge-key"
        fresh = file.with_name(f"{file.name}-{os.getpid()}")
        fresh.touch(mode=0o600)
        fresh.write_text(persons.new_key(), encoding="utf-8")
        try:
            os.link(fresh, file)
        except FileExistsError:
            pass
        finally:
            fresh.unlink()
        return file.read_text(encoding="utf-8")
