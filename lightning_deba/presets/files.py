"""Presets in YAML files, as ``lightning-deba characterize`` writes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

from lightning_deba.policies import BatchSizePolicy, Chain
from lightning_deba.policies.registry import list_policies, policy_info
from lightning_deba.presets.preset import Preset

__all__ = ["preset_to_yaml", "read_preset"]

_FIELDS = {
    "name": str,
    "architectures": list,
    "policy": dict,
    "source": str,
    "note": str,
    "score": float,
    "verdict": str,
}


def read_preset(path: str | Path) -> Preset:
    """Reads a preset from a YAML file. It is data: nothing in it is executed.

    The policy is one of `lightning_deba.policies`, written as jsonargparse writes a class::

        name: convnext_own
        architectures: [convnext_*]
        policy:
          class_path: lightning_deba.DEBA
          init_args: {confidence_threshold: 0.8, stability_threshold: 0.2}
        source: own runs, 100 epochs

    Args:
        path: The file.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is not a preset.

    Example:
        >>> import tempfile
        >>> from lightning_deba.presets import get_preset
        >>> file = Path(tempfile.mkdtemp()) / "own.yaml"
        >>> _ = file.write_text(preset_to_yaml(get_preset("vit")))
        >>> read_preset(file) == get_preset("vit")
        True
    """
    import yaml  # presets that come with the package do without

    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"`preset` '{path}' is no file. `lightning-deba characterize` writes one.")
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
        return _preset(data)
    except (TypeError, ValueError, yaml.YAMLError) as error:
        raise ValueError(f"`preset` '{path}' cannot be read: {' '.join(str(error).split())}") from error


def preset_to_yaml(preset: Preset) -> str:
    """Writes a preset as `read_preset` reads it.

    Args:
        preset: One whose policy is of the package.

    Raises:
        ValueError: If its policy is none of the package, or a `Chain`, which YAML could not name.

    Example:
        >>> from lightning_deba import Hold
        >>> print(preset_to_yaml(Preset("own", ("toy*",), Hold(), "a guess")).strip())
        name: own
        architectures:
        - toy*
        policy:
          class_path: lightning_deba.policies.Hold
          init_args: {}
        source: a guess
    """
    import yaml

    policy = preset.policy
    if not is_dataclass(policy) or isinstance(policy, type) or not _is_of_the_package(policy):
        raise ValueError(f"`policy` of preset {preset.name!r} is no policy of the package, got {policy!r}.")
    data = {
        "name": preset.name,
        "architectures": list(preset.architectures),
        "policy": {"class_path": f"lightning_deba.policies.{type(policy).__name__}", "init_args": asdict(policy)},
        "source": preset.source,
        "note": preset.note,
        "score": preset.score,
        "verdict": preset.verdict,
    }
    text: str = yaml.safe_dump({k: v for k, v in data.items() if v not in ("", None)}, sort_keys=False, width=110)
    return text


def _is_of_the_package(policy: BatchSizePolicy) -> bool:
    """Whether reading its class and arguments back gives the same policy, which of a `Chain` they do not."""
    name = type(policy).__name__
    return name in list_policies(name) and policy_info(name).policy is type(policy) and not isinstance(policy, Chain)


def _preset(data: Any) -> Preset:
    if not isinstance(data, Mapping):
        raise ValueError(f"expected fields such as `name` and `policy`, got {type(data).__name__}")
    if unknown := sorted(set(data) - set(_FIELDS)):
        raise ValueError(f"unknown field `{unknown[0]}`; the fields are {', '.join(_FIELDS)}")
    if missing := [name for name in ("name", "architectures", "policy", "source") if name not in data]:
        raise ValueError(f"`{missing[0]}` is missing")
    for name, value in data.items():
        if not isinstance(value, (_FIELDS[name], int) if name == "score" else _FIELDS[name]):
            raise ValueError(f"`{name}` must be a {_FIELDS[name].__name__}, got {value!r}")
    if not all(isinstance(pattern, str) for pattern in data["architectures"]):
        raise ValueError(f"`architectures` must be names or patterns, got {data['architectures']!r}")
    return Preset(
        **{**data, "architectures": tuple(data["architectures"]), "policy": _policy(data["policy"])},
    )


def _policy(data: Mapping[str, Any]) -> BatchSizePolicy:
    path, arguments = data.get("class_path"), data.get("init_args", {})
    if not isinstance(path, str) or not isinstance(arguments, Mapping):
        raise ValueError("`policy` must have a `class_path` and may have `init_args`")
    if not path.startswith("lightning_deba."):
        raise ValueError(f"`class_path` must be a policy of lightning_deba, got {path!r}")
    policy: BatchSizePolicy = policy_info(path.rsplit(".", 1)[-1]).policy(**arguments)
    return policy
