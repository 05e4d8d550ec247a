"""From a characterization to a preset, and the real runs behind the presets that come with the package."""

from __future__ import annotations

import json
from importlib.resources import files

from lightning_deba.characterization import Characterization
from lightning_deba.presets.preset import Preset

__all__ = ["evidence", "list_evidence", "preset_from"]


def preset_from(found: Characterization, name: str, source: str) -> Preset:
    """Makes the preset that a characterization suggests for its architecture.

    Args:
        found: The characterization.
        name: The preset's name.
        source: What was run.

    Example:
        >>> preset_from(evidence("resnet18"), "resnet18_own", "the runs behind resnet_shallow").architectures
        ('resnet18',)
    """
    return Preset(
        name=name,
        architectures=(found.profile.architecture,) if found.profile.architecture else (),
        policy=found.policy,
        source=source,
        note=f"{found.verdict.reason} {found.verdict.risk}",
        score=round(found.profile.score, 2),
        verdict=found.verdict.word,
    )


def evidence(architecture: str) -> Characterization:
    """Returns what the baseline runs of an architecture found, with all their histories.

    ``python -m tests.evidence`` made them, and says how to make them again.

    Args:
        architecture: One of `list_evidence`.

    Raises:
        ValueError: If this architecture was not run.

    Example:
        >>> len(evidence("resnet18").profile.histories)
        3
    """
    if architecture not in list_evidence():
        raise ValueError(f"`architecture` must be one of {', '.join(list_evidence())}, got {architecture!r}.")
    text = (files("lightning_deba.presets") / "evidence" / f"{architecture}.json").read_text(encoding="utf-8")
    return Characterization.from_dict(json.loads(text))


def list_evidence() -> list[str]:
    """Lists the architectures that were run.

    Example:
        >>> "resnet18" in list_evidence()
        True
    """
    folder = files("lightning_deba.presets") / "evidence"
    return sorted(file.name.removesuffix(".json") for file in folder.iterdir() if file.name.endswith(".json"))
