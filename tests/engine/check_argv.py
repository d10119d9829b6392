"""Check launches with the parser and the checks of the vLLM that this Python imports, without a model or a GPU.

Reads one JSON object per line: `id`, `argv` (`serve MODEL --flag…`, or null for a container that runs no vLLM), `env`,
and `models` (path in argv -> fields of the model's config.json: model_type, architectures, fields). Writes one line for
each, in order: `id` and `faults`, which is empty if this version accepts the launch.

The checks are the engine's own: the parser and validation of `vllm serve`, its managers of parsers, its dataclasses and
its envs.py. Only the reading of model files is replaced.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import os
import re
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

# The engine logs to stdout, which is for the verdicts.
VERDICTS, sys.stdout = sys.stdout, sys.stderr
# No request goes to the Hub: the models are not on this machine, and a path of a container must not change.
os.environ.update(HF_ENDPOINT="http://127.0.0.1:9", VLLM_NO_USAGE_STATS="1", VLLM_PLUGINS="spark")

import vllm  # noqa: E402
import vllm.config.speculative as speculation  # noqa: E402
import vllm.logger  # noqa: E402
from transformers import AutoConfig, PretrainedConfig  # noqa: E402
from vllm import envs  # noqa: E402
from vllm.config import AttentionConfig, ParallelConfig, SpeculativeConfig  # noqa: E402
from vllm.engine.arg_utils import AsyncEngineArgs  # noqa: E402
from vllm.entrypoints.cli import serve  # noqa: E402
from vllm.model_executor.layers.quantization import QUANTIZATION_METHODS  # noqa: E402
from vllm.model_executor.models.registry import ModelRegistry  # noqa: E402
from vllm.transformers_utils.config import _CONFIG_REGISTRY  # noqa: E402
from vllm.utils.argparse_utils import FlexibleArgumentParser  # noqa: E402

try:
    from vllm.entrypoints.launchers.launcher import validate_api_server_args
except ImportError:  # before 0.25
    from vllm.entrypoints.openai.api_server import validate_api_server_args
try:
    from vllm.envs import validate_environ
except ImportError:  # since 0.31
    from vllm.platforms import current_platform

    validate_environ = current_platform.validate_environ

VLLM_NAME = re.compile(r"\bVLLM_[A-Z0-9_]+\b")


class Refusing(FlexibleArgumentParser):
    """The engine's parser. It raises an error instead of ending the program."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


@cache
def parser() -> FlexibleArgumentParser:
    """Return the parser of `vllm` with the subcommand `serve`."""
    created = Refusing(prog="vllm")
    command = serve.ServeSubcommand()
    command.subparser_init(created.add_subparsers(dest="subparser"))
    return created


class Deprecations(logging.Handler):
    """Records the engine's messages about deprecated names."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if "deprecated" in record.getMessage():
            self.said.append(record.getMessage())


def faults(launch: Mapping[str, Any]) -> Iterator[str]:
    """Yield everything that this version refuses or ignores, or that is deprecated."""
    for name, value in sorted(launch["env"].items()):
        if name.startswith("VLLM_"):
            yield from variable_faults(name, value)
    if launch["argv"] is None:
        return
    forget_what_was_said()
    heard = Deprecations()
    logging.getLogger("vllm").addHandler(heard)
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            yield from argv_faults(launch["argv"], launch["models"])
    finally:
        logging.getLogger("vllm").removeHandler(heard)
    yield from heard.said
    yield from (str(one.message) for one in warned if issubclass(one.category, FutureWarning))


def forget_what_was_said() -> None:
    """Reset the warnings that the engine prints once per process, so that each launch prints them."""
    for member in vars(vllm.logger).values():
        if hasattr(member, "cache_clear"):
            member.cache_clear()


# --- variables


def variable_faults(name: str, value: str) -> Iterator[str]:
    """Yield a fault if this version does not know a variable, refuses its value, deprecates it, or never reads it."""
    with mock.patch.dict(os.environ, {name: value}), warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            validate_environ(hard_fail=True)
            envs.environment_variables[name]()
        except (ValueError, KeyError) as error:
            yield f"{name}: {error}"
            return
    yield from (f"{name}: {one.message}" for one in warned if issubclass(one.category, FutureWarning))
    if name not in read_variables():
        yield f"{name}: known to envs.py, and nothing in vLLM {vllm.__version__} reads it"


@cache
def read_variables() -> frozenset[str]:
    """Return every VLLM_* name in a source file other than envs.py, and those that envs.py uses itself."""
    package = Path(vllm.__file__).parent
    names: set[str] = set()
    for file in package.rglob("*.py"):
        if file != package / "envs.py":
            names.update(VLLM_NAME.findall(file.read_text(encoding="utf-8")))
    # In envs.py a name is in its type, its key and its getenv; a name that occurs more often is used by another.
    counted = VLLM_NAME.findall((package / "envs.py").read_text(encoding="utf-8"))
    return frozenset(names | {name for name in set(counted) if counted.count(name) > 3})


# --- flags


def argv_faults(argv: list[str], models: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield the faults of the steps of `vllm serve` before it reads the model."""
    try:
        # vLLM's parser searches sys.argv for a positional model.
        with mock.patch.object(sys, "argv", ["vllm", *argv]):
            args = parser().parse_args(argv)
        serve.ServeSubcommand().validate(args)
        args.model = args.model_tag
        engine = AsyncEngineArgs.from_cli_args(args)
        validate_api_server_args(args)
    except Exception as error:
        # Any exception of the engine's code here ends its start.
        yield first_line(error)
        return
    yield from parser_faults(args)
    if engine.quantization and engine.quantization not in QUANTIZATION_METHODS:
        yield f"quantization {engine.quantization} is none of {', '.join(sorted(QUANTIZATION_METHODS))}"
    undescribed = [path for path, described in models.items() if not described]
    if undescribed:
        yield f"no pattern of tests/engine/models.yml is in {' or '.join(undescribed)}"
        return
    wanted = models[engine.model]["architectures"]
    if not known_architectures(wanted):
        yield f"model {engine.model}: vLLM {vllm.__version__} has no {' or '.join(wanted)}"
    yield from configuration_faults(engine, models)


def parser_faults(args: argparse.Namespace) -> Iterator[str]:
    """Yield unknown names of parsers, including those that the engine reads after its start."""
    from vllm.reasoning import ReasoningParserManager  # noqa: PLC0415  loads parsers
    from vllm.tool_parsers import ToolParserManager  # noqa: PLC0415

    for kind, requested, known in (
        ("tool call", args.tool_call_parser, ToolParserManager.list_registered()),
        ("reasoning", args.reasoning_parser, ReasoningParserManager.list_registered()),
    ):
        if requested and requested not in known:
            yield f"invalid {kind} parser: {requested} (chose from {', '.join(known)})"


def known_architectures(named: Sequence[str]) -> set[str]:
    """Return the architectures of config.json for which this version has a class."""
    return set(named) & set(ModelRegistry.get_supported_archs())


def configuration_faults(engine: AsyncEngineArgs, models: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield the faults of the engine's configuration objects, created as in create_engine_config."""
    try:
        AttentionConfig(backend=engine.attention_backend)
        parallel = parallel_config(engine)
        if engine.speculative_config is not None:
            yield from drafter_faults(engine, parallel, models)
    except Exception as error:
        yield first_line(error)


def parallel_config(engine: AsyncEngineArgs) -> ParallelConfig:
    """Return the layout of the ranks. Ray is not installed here; its layout is that of mp with one rank per node."""
    names = {field.name for field in dataclasses.fields(ParallelConfig)} & set(vars(engine))
    wanted = {name: getattr(engine, name) for name in sorted(names & PARALLEL)}
    if engine.distributed_executor_backend == "ray":
        wanted |= {"distributed_executor_backend": "mp", "nnodes": engine.tensor_parallel_size}
    return ParallelConfig(**wanted)


PARALLEL = {
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "distributed_executor_backend",
    "nnodes",
    "node_rank",
    "master_addr",
    "master_port",
    "enable_expert_parallel",
}


# --- the drafter


class Model:
    """A fake of the engine's ModelConfig for a model without files: the fields of config.json, equal values where the
    engine compares two models, and None for every other attribute."""

    def __init__(self, **known: Any) -> None:
        vars(self).update(known)

    @property
    def registry(self) -> Model:
        return self

    @property
    def architectures(self) -> list[str]:
        return list(self.hf_config.architectures)

    def inspect_model_cls(self, architectures: list[str], config: object) -> tuple[None, str]:
        return None, architectures[0]

    def get_model_arch_config(self) -> None:
        return None

    def get_vocab_size(self) -> int:
        return 0

    @property
    def is_moe(self) -> bool:
        """Say that the drafter may have experts: only where the model has them are they split over the ranks."""
        return True

    def using_transformers_backend(self) -> bool:
        return False

    def verify_with_parallel_config(self, parallel: ParallelConfig) -> None:
        return None

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


def hf_config(described: Mapping[str, Any]) -> PretrainedConfig:
    """Return a config of this model type and these fields.

    Every other value is the default of the engine's own class or, without one, of transformers.
    """
    kind, fields = described["model_type"], described.get("fields", {})
    config = _CONFIG_REGISTRY[kind](**fields) if kind in _CONFIG_REGISTRY else AutoConfig.for_model(kind, **fields)
    config.architectures = list(described["architectures"])
    return config


def drafter_faults(
    engine: AsyncEngineArgs, parallel: ParallelConfig, models: Mapping[str, Mapping[str, Any]]
) -> Iterator[str]:
    """Build the SpeculativeConfig, which detects the method, and check that this version has the drafter's class."""
    created: list[Model] = []

    def model_config(*, model: str, hf_overrides: Any = None, **given: Any) -> Model:
        config = hf_config(models[model])
        config = hf_overrides(config) if callable(hf_overrides) else config
        known = {**given, "model": model, "hf_config": config, "hf_text_config": config}
        created.append(Model(**{**known, "max_model_len": given.get("max_model_len") or engine.max_model_len}))
        return created[-1]

    target = model_config(model=engine.model, max_model_len=engine.max_model_len)
    wanted = {
        **engine.speculative_config,
        "target_model_config": target,
        "target_parallel_config": parallel,
    }
    with mock.patch.object(speculation, "ModelConfig", model_config):
        config = SpeculativeConfig(**wanted)
    drafter = created[-1]
    if drafter is not target and not known_architectures(drafter.architectures):
        yield (
            f"drafter {drafter.model}: vLLM {vllm.__version__} takes it for {config.method} and has no "
            f"{' or '.join(drafter.architectures)}"
        )


def first_line(error: Exception) -> str:
    """Return an error as one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def main() -> None:
    for line in sys.stdin:
        launch = json.loads(line)
        print(json.dumps({"id": launch["id"], "faults": list(faults(launch))}), file=VERDICTS, flush=True)


if __name__ == "__main__":
    main()
