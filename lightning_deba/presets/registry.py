"""The registry: presets by their own name, and by the name of a model."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches
from fnmatch import filter as matching

from lightning_deba.presets.files import read_preset
from lightning_deba.presets.preset import Preset
from lightning_deba.presets.shipped import SHIPPED

_PRESETS = {preset.name: preset for preset in SHIPPED}


def register_preset(preset: Preset) -> None:
    """Adds a preset. For the architectures it is meant for, it goes before those registered earlier.

    Args:
        preset: The preset. Registering an equal one again changes nothing.

    Raises:
        ValueError: If another preset has its name.

    Example:
        >>> from lightning_deba import DEBA
        >>> register_preset(Preset("toy", ("toynet_*",), DEBA(cooldown=3), source="a guess"))
        >>> match_preset("toynet_small.tag").name
        'toy'
        >>> _ = _PRESETS.pop("toy")  # nothing of this example stays
    """
    if _PRESETS.setdefault(preset.name, preset) != preset:
        raise ValueError(
            f"`name` of a preset must be new, and there is another preset {preset.name!r}. "
            f"Choose a name such as '{preset.name}_own'."
        )


def list_presets(pattern: str = "*") -> list[str]:
    """Lists the names of the presets that match a pattern, in order.

    Args:
        pattern: As of a shell: ``*`` stands for anything.

    Example:
        >>> list_presets("resnet*")
        ['resnet_deep', 'resnet_shallow']
    """
    return sorted(matching(_PRESETS, pattern))


def get_preset(name: str) -> Preset:
    """Returns the preset of that very name; see `match_preset` for the name of a model.

    Args:
        name: One of `list_presets`.

    Raises:
        ValueError: If there is no such preset.

    Example:
        >>> get_preset("resnet_deep").policy.stability_threshold
        0.245
    """
    if name not in _PRESETS:
        raise ValueError(
            f"`name` must be one of the presets {', '.join(list_presets())}, got {name!r}."
            f"{_did_you_mean(name, _PRESETS)} The name of a model goes to `match_preset`."
        )
    return _PRESETS[name]


def match_preset(model_name: str) -> Preset:
    """Finds the preset for a model by its name. No model is built.

    Args:
        model_name: A model of timm or torchvision, with or without tag and hub prefix, a preset's own name, or the
            path of a YAML file with a preset.

    Returns:
        The preset whose architectures the name fits, the last registered of several; for any other model
        that timm or torchvision knows, ``generic``, whose `note` suggests a characterization.

    Raises:
        ValueError: If nobody knows the name, or the file is not a preset.
        FileNotFoundError: If there is no such file.

    Note:
        Only a name that fits no preset is looked up in timm and torchvision, which imports them.

    Example:
        >>> match_preset("hf-hub:timm/resnet18.a1_in1k").name
        'resnet_shallow'
        >>> match_preset("wide_resnet50_2").name, match_preset("mobilenet_v3_large").name
        ('resnet_deep', 'mobilenet')
    """
    if model_name in _PRESETS:
        return _PRESETS[model_name]
    if model_name.endswith((".yaml", ".yml")):
        return read_preset(model_name)
    architecture = bare_name(model_name)
    if preset := fitting_preset(architecture):
        return preset
    if not _is_known(architecture):
        raise ValueError(
            f"`model_name` must be a model of timm or torchvision, or a preset, got {model_name!r}."
            f"{_did_you_mean(architecture, _known_names())} "
            "For a network of your own, write 'generic' or pass a policy."
        )
    return _PRESETS["generic"]


def fitting_preset(architecture: str) -> Preset | None:
    """Returns the last registered preset that is meant for an architecture, if there is one."""
    return next((preset for preset in reversed(_PRESETS.values()) if preset.fits(architecture)), None)


def bare_name(model_name: str) -> str:
    """Strips hub, organization and tag from the name of a model.

    Example:
        >>> bare_name("hf-hub:timm/vit_base_patch16_clip_224.openai")
        'vit_base_patch16_clip_224'
    """
    return re.split("[:/]", model_name)[-1].split(".")[0].lower()


def _is_known(architecture: str) -> bool:
    # Imported here, since the package must import without them, and most names do without them too.
    import timm
    import torchvision

    return timm.is_model(architecture) or architecture in torchvision.models.list_models()


def _known_names() -> list[str]:
    import timm
    import torchvision

    return [*_PRESETS, *timm.list_models(), *torchvision.models.list_models()]


def _did_you_mean(name: str, known: Iterable[str]) -> str:
    """Returns a question with the names closest to `name`, or nothing where none is close."""
    close = dict.fromkeys(get_close_matches(name, list(known)))
    return f" Did you mean {' or '.join(map(repr, close))}?" if close else ""
