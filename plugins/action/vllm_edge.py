"""Install the edge of this host as planned. vllm_spark.edge decides; the module vllm_edge works on the host."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from ansible import constants

from vllm_spark.edge import authority, config, persons, steps, store
from vllm_spark.edge.authority import KeyPair
from vllm_spark.inventory import edge
from vllm_spark.inventory.front import EdgeOwner
from vllm_spark_ansible.action import SparkAction
from vllm_spark_ansible.resolved import edge_owner_of


class ActionModule(SparkAction):
    """Arguments: state, `stopped` for the edge of a site that is open; otherwise authority, the folder of the site's
    authority, and new_authority, true to replace one that is elsewhere. The spec and the facts are those of
    spark_precheck. Does nothing on the host if the edge is as planned."""

    _supports_diff = True
    quiet = True

    def act(self) -> dict[str, Any]:
        if self.args.get("state") == "stopped":
            return self.execute("vllm_edge", {"state": "stopped"}, "steps")
        # The plan has an edge, so the host has an owner of one.
        spec = cast("EdgeOwner", edge_owner_of(self.hostvars[self.host]))
        facts = self.registered("spark_precheck_box", "facts", [self.host])[self.host]
        address = str(self.task_vars.get("ansible_host", self.host))
        names = list(dict.fromkeys(config.names(spec, address)))
        now = datetime.now(UTC)
        signer = self._signer(spec, facts["edge"]["certificate"], names, now)
        planned = steps.steps(spec, facts, address, signer.certificate if signer else "", now)
        if planned.settled:
            return {"steps": []}
        self.say(*steps.lines(planned, spec, acts=self.acts))
        texts = {"config": planned.config, "tokens": planned.tokens, "unit": planned.unit}
        args: dict[str, Any] = {**texts, **planned.switch}
        if planned.renewal and signer:
            own = spec.edge.tls == edge.OWN_CA
            asks = spec.edge.joins(spec.host)
            pair = authority.new_certificate(signer, names, now, asks=asks) if own else signer
            args |= {"certificate": pair.certificate, "private_key": pair.private_key}
        if spec.edge.joins(spec.host) and signer:
            args["authority"] = signer.certificate
        lines = self._first_keys(spec, args) if planned.first_key else []
        done = self.execute("vllm_edge", args, "steps")
        self.say(*lines)
        return done

    def _first_keys(self, spec: EdgeOwner, args: dict[str, Any]) -> list[str]:
        """Add the keys of a host without keys to the arguments of the module, and return what the operator reads
        afterwards: keys of the other hosts of the site, or a new one."""
        boxes = {host: self.hostvars[host].get("spark_precheck_box") or {} for host in self.play_hosts_all}
        site = persons.of_site(spec, {host: box["facts"] for host, box in boxes.items() if "facts" in box})
        if site.hashes:
            args["first_keys"] = dict(site.hashes)
            verb = "are" if self.acts else "would be"
            return [f"the keys of {', '.join(site.sources)} {verb} valid here too: {', '.join(site.persons)}"]
        if self.check_mode:
            return []
        key = self._new_key()
        args["first_keys"] = {persons.key_hash(key): persons.OWNER}
        lines = [f"your key, shown only now: export VLLM_KEY={key}"]
        if site.unread:
            lines.append(
                f"this run has not read {', '.join(site.unread)}, so keys from there are not valid here. "
                "Fix: vllm-spark key add NAME. It gives a person one key for all hosts."
            )
        return lines

    def _signer(self, spec: EdgeOwner, present: str, names: list[str], now: datetime) -> KeyPair | None:
        """Return the site's authority or the owner's own certificate; None without TLS, and in check mode before there
        is an authority."""
        if spec.edge.tls == edge.OFF:
            return None
        if spec.edge.tls == edge.FILES:
            return store.read_files(spec.edge.certificate, spec.edge.private_key, names, now)
        folder = Path(self.args["authority"])
        if self.check_mode:
            return store.read(folder)
        return store.read_or_create(folder, now, "" if self.args["new_authority"] else present)

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
