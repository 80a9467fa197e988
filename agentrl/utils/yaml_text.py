"""Write YAML with PyYAML's C library. YAML is not read with this library, because deeply nested input crashes it."""

from __future__ import annotations

from collections.abc import Mapping

import yaml

_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


def yaml_text(values: Mapping[str, object]) -> str:
    """Return `values` as YAML, in their order."""
    try:
        return _dumped(values, _DUMPER)
    except UnicodeEncodeError:  # a lone surrogate, which only the slower Python emitter accepts
        return _dumped(values, yaml.SafeDumper)


def _dumped(values: Mapping[str, object], dumper: type[yaml.SafeDumper]) -> str:
    return yaml.dump(values, Dumper=dumper, sort_keys=False, allow_unicode=True)
