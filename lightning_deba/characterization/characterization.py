"""All that a characterization found, in one file: measured numbers are kept, and the rest is computed from them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from lightning_deba.characterization.calibration import calibrate, threshold_intervals
from lightning_deba.characterization.profile import StabilityProfile
from lightning_deba.characterization.throughput import ThroughputCurve
from lightning_deba.characterization.verdict import Verdict, verdict
from lightning_deba.policies import DEBA

__all__ = ["Characterization"]


@dataclass(frozen=True)
class Characterization:
    """A profile, a throughput curve, and what follows from them.

    Attributes:
        profile: Of runs with a fixed batch size.
        curve: On the machine that will train.
        about: How it was made, as plain data: data set, samples, seeds, versions, command.

    Example:
        >>> from lightning_deba import EpochRecord
        >>> run = [EpochRecord(t, 32, 32, loss=0.9**t, gradient_norm=1 + 0.1 * (t % 3),
        ...                    component_variance=(1 + 0.1 * (t % 3)) ** 2) for t in range(30)]
        >>> found = Characterization(StabilityProfile.from_history(run, "toy"),
        ...                          ThroughputCurve({32: 0.02, 64: 0.03, 128: 0.05}))
        >>> found.verdict.word
        'adapt'
        >>> Characterization.from_dict(found.to_dict()).policy == found.policy
        True
    """

    profile: StabilityProfile
    curve: ThroughputCurve
    about: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def policy(self) -> DEBA:
        """The calibrated policy; see `calibrate`."""
        return calibrate(self.profile)

    @cached_property
    def intervals(self) -> dict[str, tuple[float, float]]:
        """90 % intervals of its thresholds; see `threshold_intervals`."""
        return threshold_intervals(self.profile)

    @cached_property
    def verdict(self) -> Verdict:
        """Whether to adapt; see `verdict`."""
        return verdict(self.profile, self.curve, self.policy)

    def to_dict(self) -> dict[str, Any]:
        """Returns plain data: what was measured, and for the reader what follows from it."""
        word = self.verdict
        return {
            **self.profile.to_dict(),
            "throughput": self.curve.to_dict(),
            "about": dict(self.about),
            "found": {
                "score": self.profile.score,
                "correlation_time": self.profile.correlation_time,
                "policy": {
                    "confidence_threshold": self.policy.confidence_threshold,
                    "stability_threshold": self.policy.stability_threshold,
                    "cooldown": self.policy.cooldown,
                },
                "intervals": {name: list(ends) for name, ends in self.intervals.items()},
                "verdict": {"word": word.word, "saving": word.saving, "reason": word.reason, "risk": word.risk},
            },
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Characterization:
        """Reads what `to_dict` wrote. What follows from the measurements is computed again.

        Raises:
            ValueError: If it is not a characterization.
        """
        about, throughput = data.get("about", {}), data.get("throughput")
        if not isinstance(about, Mapping) or not isinstance(throughput, Mapping):
            raise ValueError("a characterization must have a `throughput` and an `about`")
        return cls(StabilityProfile.from_dict(data), ThroughputCurve.from_dict(throughput), about)

    @classmethod
    def read(cls, path: str | Path) -> Characterization:
        """Reads a ``profile.json``.

        Raises:
            FileNotFoundError: If there is no such file.
            ValueError: If it is not a characterization.
        """
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
            if not isinstance(data, dict):
                raise ValueError(f"expected a JSON object, got {type(data).__name__}")
            return cls.from_dict(data)
        except (ValueError, RecursionError, TypeError) as error:
            raise ValueError(f"'{path}' is not the profile of a characterization: {error}") from error
