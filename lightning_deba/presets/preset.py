"""What a preset is."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

from lightning_deba.policies import BatchSizePolicy


@dataclass(frozen=True)
class Preset:
    """A policy for a family of architectures, and where its parameters come from.

    Args:
        name: Its own name, which begins with the word of its family.
        architectures: Names of the architectures that it is meant for, or patterns such as ``"resnet18*"``,
            in lower case, without tag ("a1_in1k") and organization ("timm/").
        policy: The policy, usually a `DEBA`.
        source: Where its numbers come from. Mandatory: numbers without a source are worth nothing.
        note: What to know before using it, in a line.
        score: Stability score of the baseline runs that it was calibrated from, if it was.
        verdict: Verdict on them: "adapt", "marginal" or "don't adapt"; empty where there were none.

    Raises:
        ValueError: If `name` or `source` is empty, or `architectures` is a single text.
        TypeError: If `policy` is no policy.

    Example:
        >>> from lightning_deba import DEBA
        >>> preset = Preset(name="convnext_small_data", architectures=("convnext_*",),
        ...                 policy=DEBA(stability_threshold=0.1), source="own runs of 2025-11, 100 epochs")
        >>> preset.fits("convnext_tiny"), preset.fits("resnet18")
        (True, False)
    """

    name: str
    architectures: tuple[str, ...]
    policy: BatchSizePolicy
    source: str
    note: str = ""
    score: float | None = None
    verdict: str = ""

    def __post_init__(self) -> None:
        for field in ("name", "source"):
            if not getattr(self, field).strip():
                raise ValueError(f"`{field}` of a preset must not be empty, got {getattr(self, field)!r}.")
        if isinstance(self.architectures, str):
            raise ValueError(
                f"`architectures` must be a tuple of names or patterns, got {self.architectures!r}. "
                f"Write ({self.architectures!r},)."
            )
        if not isinstance(self.policy, BatchSizePolicy):
            raise TypeError(f"`policy` of a preset must be a policy, got {self.policy!r}. Pass one such as `DEBA()`.")

    def fits(self, architecture: str) -> bool:
        """Tells whether the preset is meant for an architecture."""
        return any(fnmatchcase(architecture, pattern) for pattern in self.architectures)
