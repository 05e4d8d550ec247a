"""Presets: named policy parameters for families of architectures, each with its source.

`match_preset` finds one by a model's name, `preset_for` by the model itself, `get_preset` by its own name.
A preset says by patterns which architectures it is meant for, and `register_preset` adds one. A network
without a preset of its own gets ``generic``, which is cautious. `evidence` returns the runs behind a preset.
"""

from lightning_deba.presets.calibrated import evidence, list_evidence, preset_from
from lightning_deba.presets.files import preset_to_yaml, read_preset
from lightning_deba.presets.models import architecture_in, preset_for
from lightning_deba.presets.preset import Preset
from lightning_deba.presets.registry import get_preset, list_presets, match_preset, register_preset

__all__ = [
    "Preset",
    "architecture_in",
    "evidence",
    "get_preset",
    "list_evidence",
    "list_presets",
    "match_preset",
    "preset_for",
    "preset_from",
    "preset_to_yaml",
    "read_preset",
    "register_preset",
]
