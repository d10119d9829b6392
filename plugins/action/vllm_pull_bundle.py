"""Write the bundle for a site without internet if it is not finished, otherwise check it.

vllm_spark.transfer.bundle does the work, the downloads in a process of its own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.module_utils.parsing.convert_bool import boolean

from vllm_spark.core import own_process
from vllm_spark.core.refusal import RefusedError
from vllm_spark.inventory.spec import Spec
from vllm_spark_ansible.action import SparkAction


class ActionModule(SparkAction):
    """Arguments: hosts, folder, registries (host -> URL), token of the hub, environment of its library; signers (the
    file of accepted signers), key (that signs; empty: the operator's own), unsigned. Returns `written`: this run wrote
    the bundle and pulls nothing to a Spark."""

    def act(self) -> dict[str, Any]:
        # These imports take half a second, and no other verb needs them.
        from vllm_spark.transfer import bundle, bundle_check  # noqa: PLC0415

        folder = Path(self.args["folder"]).expanduser().resolve()
        pulled = self.registered("vllm_pull_wanted", "specs", self.args["hosts"])
        request = bundle.BundleRequest.of([Spec.from_json(spec) for specs in pulled.values() for spec in specs])
        signers, key = Path(self.args["signers"]).expanduser().resolve(), self.args.get("key", "")
        trust = bundle_check.Trust(signers, key, boolean(self.args.get("unsigned", False)))
        if bundle.is_finished(folder):
            if refusals := bundle.refusals(folder, request, trust, self.show):
                raise RefusedError(refusals)
            return {"written": False}
        if self.check_mode:
            trust.signing_key(self.show)
            names = [*(image.name for image in request.images), *map(str, request.models)]
            self.show(f"{folder} would get {', '.join(names)}")
            return {"changed": True, "written": True}
        token = {"HF_TOKEN": self.args["token"]} if self.args["token"] else {}
        downloads = {
            "folder": str(folder),
            "specs": [spec for specs in pulled.values() for spec in specs],
            "registries": dict(self.args["registries"]),
            "environment": token | dict(self.args["environment"]),
            "signers": str(signers),
            "key": key,
            "unsigned": trust.unsigned,
        }
        own_process.run("vllm_spark.transfer.bundle", downloads, self.show)
        self.show(f"{folder} is finished. At a site without internet, the same command loads from it.")
        return {"changed": True, "written": True}
