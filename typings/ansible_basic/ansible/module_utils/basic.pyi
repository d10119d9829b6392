"""The part of AnsibleModule that plugins/modules use; ansible-core has no type hints."""

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

class AnsibleModule:
    params: dict[str, Any]
    check_mode: bool
    _diff: bool

    def __init__(
        self,
        argument_spec: Mapping[str, Any],
        supports_check_mode: bool = ...,
        required_if: Sequence[Sequence[Any]] | None = ...,
    ) -> None: ...
    def exit_json(self, **result: Any) -> NoReturn: ...
    def fail_json(self, msg: str, **result: Any) -> NoReturn: ...
    def jsonify(self, data: object) -> str: ...
