"""From a model to its preset. The model is only looked at, so neither torch, timm nor torchvision is imported."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from lightning_deba.presets.preset import Preset
from lightning_deba.presets.registry import bare_name, fitting_preset, get_preset


class HasModules(Protocol):
    """Anything with `modules()`, such as a `torch.nn.Module`."""

    def modules(self) -> Iterator[Any]:
        """Iterates over the module itself and all modules inside it, the outer before the inner."""
        ...


def preset_for(module: HasModules) -> Preset:
    """Finds the preset for the timm or torchvision model inside a module.

    Of several models the outermost counts, and of those side by side the first.

    Args:
        module: Any `torch.nn.Module`, such as a LightningModule that holds the model as an attribute.

    Returns:
        The preset that is meant for the model, else ``generic``.

    Raises:
        ValueError: If there is no such model inside.

    Example:
        >>> import timm
        >>> from torch import nn
        >>> preset_for(nn.Sequential(timm.create_model("mobilenetv3_small_050"), nn.Softmax(dim=1))).name
        'mobilenet'
    """
    if architecture := architecture_in(module):
        return fitting_preset(architecture) or get_preset("generic")
    raise ValueError(
        f"No timm or torchvision model found inside {type(module).__name__}: pass `preset=`, for a known architecture "
        'its name, such as "resnet18", else "generic", which is cautious; or `policy=`, such as `policy=DEBA()`.'
    )


def architecture_in(module: HasModules) -> str | None:
    """Returns the bare name of the timm or torchvision architecture inside a module; see `preset_for`.

    Args:
        module: As there.

    Example:
        >>> import timm
        >>> architecture_in(timm.create_model("resnet18"))
        'resnet18'
    """
    for inner in module.modules():
        if architecture := _timm_architecture(inner) or _torchvision_architecture(inner):
            return bare_name(architecture)
    return None


def _timm_architecture(module: object) -> str | None:
    """Reads the name of the architecture that timm leaves in the configuration of a model."""
    configuration = getattr(module, "pretrained_cfg", None)
    if isinstance(configuration, Mapping):
        name = configuration.get("architecture")
    else:
        name = getattr(configuration, "architecture", None)
    return name if isinstance(name, str) else None


def _torchvision_architecture(module: Any) -> str | None:
    """Names a torchvision model after its class; a ResNet's class leaves the depth open, so that is added.

    The blocks that models are built of are no models: torchvision leaves them out of ``__all__``.
    """
    for ancestor in type(module).__mro__:
        home = sys.modules.get(ancestor.__module__)
        public = ancestor.__name__ in getattr(home, "__all__", ())
        if public and ancestor.__module__.startswith("torchvision.models."):
            name = ancestor.__name__.lower()
            return f"{name}{_depth(module)}" if name.endswith("resnet") else name
    return None


def _depth(resnet: HasModules) -> int:
    """Counts the layers as the names of ResNets do: two or three a block, the first, and the last."""
    kinds = [type(module).__name__ for module in resnet.modules()]
    basic = sum(kind.endswith("BasicBlock") for kind in kinds)
    bottleneck = sum(kind.endswith("Bottleneck") for kind in kinds)
    return 2 * basic + 3 * bottleneck + 2
