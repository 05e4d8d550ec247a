"""The policies by name, each with a line on what it does and where it comes from."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any

from lightning_deba.policies.base import Hold
from lightning_deba.policies.cabs import CABS
from lightning_deba.policies.chain import Chain
from lightning_deba.policies.deba import DEBA
from lightning_deba.policies.decay import AdaBatch, IncreaseInsteadOfDecay, Seesaw
from lightning_deba.policies.divebatch import DiveBatch
from lightning_deba.policies.goodput import Goodput
from lightning_deba.policies.milestones import Milestones
from lightning_deba.policies.noise_policy import NoiseScale
from lightning_deba.policies.norm_test import NormTest
from lightning_deba.policies.plateau import Plateau
from lightning_deba.policies.schedules import (
    CosineGrowth,
    Cyclic,
    ExponentialGrowth,
    LinearGrowth,
    OneCycle,
    PolynomialGrowth,
    StepGrowth,
)
from lightning_deba.policies.simigrad import SimiGrad


@dataclass(frozen=True)
class PolicyInfo:
    """A policy that the package brings along.

    Attributes:
        name: Its name, which is that of its class.
        policy: Its class; `policy(...)` makes one.
        description: What it does, in a line.
        source: Where its rule comes from.
    """

    name: str
    policy: type[Any]
    description: str
    source: str


def list_policies(pattern: str = "*") -> list[str]:
    """Lists the names of the policies that match a pattern, whatever its case, in order.

    Args:
        pattern: As of a shell: ``*`` stands for anything.

    Example:
        >>> list_policies("*batch")
        ['AdaBatch', 'DiveBatch']
    """
    return sorted(name for name in _POLICIES if fnmatchcase(name.lower(), pattern.lower()))


def policy_info(name: str) -> PolicyInfo:
    """Returns what is known of the policy of that very name.

    Args:
        name: One of `list_policies`.

    Raises:
        ValueError: If there is no such policy.

    Example:
        >>> policy_info("Seesaw").source
        'arXiv 2510.14717'
    """
    if name not in _POLICIES:
        near = get_close_matches(name.lower(), [known.lower() for known in _POLICIES], n=1)
        meant = [f" Did you mean {known!r}?" for known in _POLICIES if known.lower() in near]
        raise ValueError(f"`name` must be one of {', '.join(list_policies())}, got {name!r}.{''.join(meant)}")
    return _POLICIES[name]


_POLICIES = {
    cls.__name__: PolicyInfo(cls.__name__, cls, description, source)
    for cls, description, source in (
        (Hold, "Keeps the batch size; the baseline.", "none needed"),
        (DEBA, "Grows while training is calm, rolls back when it is not.", "arXiv 2511.03809"),
        (NoiseScale, "Goes to a multiple of the gradient noise scale.", "arXiv 1812.06162"),
        (NormTest, "Grows until the gradient's error is a given share of it.", "Byrd et al., 2012; arXiv 2402.11215"),
        (SimiGrad, "Keeps the cosine between two half-batch gradients at a target.", "Qin et al., NeurIPS 2021"),
        (CABS, "Couples the batch size to rate, covariance and loss.", "arXiv 1612.05086"),
        (DiveBatch, "Grows with the diversity of the gradients, every 20 epochs.", "arXiv 2509.16173"),
        (Goodput, "Maximizes throughput times statistical efficiency.", "Qiao et al., Pollux, OSDI 2021"),
        (AdaBatch, "Doubles every 20 epochs, while the rate decays by 0.75.", "arXiv 1712.02029"),
        (IncreaseInsteadOfDecay, "Grows where the rate would decay, up to N/10.", "arXiv 1711.00489"),
        (Seesaw, "Doubles where the rate would halve and falls by sqrt(2).", "arXiv 2510.14717"),
        (Plateau, "Grows when a measured number has stopped improving.", "bs-scheduler's IncreaseBSOnPlateau"),
        (Milestones, "Goes to given sizes at given epochs or samples.", "Megatron-LM; Lightning"),
        (StepGrowth, "Multiplies the batch size every so many epochs.", "bs-scheduler's StepBS"),
        (ExponentialGrowth, "Multiplies the batch size every epoch.", "bs-scheduler's ExponentialBS"),
        (LinearGrowth, "Grows by equal amounts.", "bs-scheduler's LinearBS"),
        (PolynomialGrowth, "Grows with a power of the epoch.", "bs-scheduler's PolynomialBS"),
        (CosineGrowth, "Grows along half a cosine, once or again and again.", "bs-scheduler's CosineAnnealingBS"),
        (Cyclic, "Goes to another size and back, again and again.", "bs-scheduler's CyclicBS"),
        (OneCycle, "Shrinks, then grows, each along half a cosine.", "bs-scheduler's OneCycleBS"),
        (Chain, "Does what the first of several policies says that is not for holding.", "none needed"),
    )
}
