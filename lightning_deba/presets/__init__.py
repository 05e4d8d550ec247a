"""Presets: named policy parameters for families of architectures, each with its source.

`match_preset` finds one by a model's name, `preset_for` by the model itself, `get_preset` by its own name.
A preset says by patterns which architectures it is meant for, and `register_preset` adds one. A network
without a preset of its own gets ``generic``, which is cautious.
"""

from lightning_deba.presets.models import preset_for
from lightning_deba.presets.preset import Preset
from lightning_deba.presets.registry import get_preset, list_presets, match_preset, register_preset

__all__ = ["Preset", "get_preset", "list_presets", "match_preset", "preset_for", "register_preset"]
