"""Import megatron-bridge: NVIDIA's mapping between Hugging Face models and models of megatron-core.

During its import, megatron-bridge subclasses layers of TransformerEngine, and TransformerEngine needs a GPU. On the
CPU, empty classes replace these layers during the import. After the import, the empty classes are removed. No model
uses them.
"""

from __future__ import annotations

import copy
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from megatron.core.utils import get_te_version
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from agentrl.backends.megatron.architecture.model_config import BRIDGED, check_supported
from agentrl.backends.megatron.platform import quiet_imports
from agentrl.config.megatron import MegatronConfig
from agentrl.errors import ConfigError, Kind

if TYPE_CHECKING:
    from transformers import PretrainedConfig

SUPPORTED = "0.6.2"
"""The only supported version of megatron-bridge, because this module depends on its imports and mappings."""
KEY = "actor.megatron.use_mbridge"
_HYBRID = "actor.megatron.hybrid_model"
_MISSING = "transformer_engine"


def is_installed() -> bool:
    """Whether the supported version of megatron-bridge is installed."""
    try:
        return version("megatron-bridge") == SUPPORTED
    except PackageNotFoundError:
        return False


def auto_bridge(hf: PretrainedConfig, layout: MegatronConfig, key: str) -> Any:  # Any: megatron-bridge is untyped
    """Return the `AutoBridge` of a model; None if its weights are mapped without megatron-bridge.

    Args:
        key: the configuration key that the model's path came from, for error messages.

    Raises:
        ConfigError: the model is not supported, or needs megatron-bridge, which is missing or not allowed.
    """
    check_supported(hf, key)
    only_bridge = hf.model_type in BRIDGED
    if not (layout.use_mbridge or only_bridge):
        return None
    what = f"a model of type '{hf.model_type}'" if only_bridge else f"`{KEY}=true`"
    if layout.use_mbridge is False:
        text = f"`{KEY}=false`: {what} needs megatron-bridge: remove this key, or use `actor.backend=torch`"
        raise ConfigError.at(KEY, Kind.CONFLICT, text)
    if only_bridge and layout.hybrid_model:
        text = f"`{_HYBRID}=true` does not work with {what}, which megatron-bridge builds: remove this key"
        raise ConfigError.at(_HYBRID, Kind.NOT_SUPPORTED, text)
    _check_installed(what)
    language = copy.copy(hf)
    # megatron-bridge knows only language-model heads
    language.architectures = [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[hf.model_type]]
    with quiet_imports():  # megatron-bridge warns about deprecated models
        return _imported().AutoBridge.from_hf_config(language)


def mapping_registry(bridge: Any, hf: PretrainedConfig) -> Any:
    """Return the mappings of the parameters of a model, from its `AutoBridge`."""
    found = bridge._model_bridge
    found.hf_config = hf  # some mappings depend on it
    return found.mapping_registry()


def _check_installed(what: str) -> None:
    lacking = {"megatron-bridge": SUPPORTED} if not is_installed() else {}
    if torch.cuda.is_available() and find_spec(_MISSING) is None:
        lacking["transformer-engine"] = "for its layers"
    if lacking:
        text = f"{what} needs {' and '.join(map(' '.join, lacking.items()))}: see docs/megatron.md"
        raise ConfigError.at(KEY, Kind.NOT_FOUND, text)


def _imported() -> Any:
    with quiet_imports(), _quiet_logging(), _layers_of_transformer_engine():
        import megatron.bridge
        from megatron.bridge.models.conversion.param_mapping import AutoMapping
    AutoMapping.register_module_type("Linear", "replicated")  # the type of latent attention's down-projections
    return megatron.bridge


@contextmanager
def _quiet_logging() -> Iterator[None]:
    """Hide messages about libraries that are not installed."""
    root, logged = logging.getLogger(), logging.root.manager.disable
    handlers = [*root.handlers]
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(logged)
        root.handlers[:] = handlers  # a library that calls `logging.warning` adds a handler


@contextmanager
def _layers_of_transformer_engine() -> Iterator[None]:
    if torch.cuda.is_available():
        yield
        return
    get_te_version()  # called now, so that megatron-core caches that TransformerEngine is not installed
    finder = _StandIns()
    sys.meta_path.append(finder)  # last, so that installed packages are found first
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name, module in sys.modules.items() if isinstance(module, _StandIn)]:
            del sys.modules[name]  # other libraries must not find these modules


class _StandIns(MetaPathFinder, Loader):
    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        found = name.partition(".")[0] == _MISSING
        return ModuleSpec(name, self, is_package=True) if found else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None: ...


class _Empty(type):
    """Metaclass of the empty classes: each attribute of an empty class is another empty class."""

    def __getattr__(cls, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Empty(name, (), {})


class _StandIn(ModuleType):
    """A module in which each name is an empty class."""

    __path__: list[str] = []  # noqa: RUF012  # packages have this attribute

    def __getattr__(self, name: str) -> type:
        return _Empty(name, (), {})
