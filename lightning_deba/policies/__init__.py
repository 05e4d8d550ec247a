"""Policies decide: a pure function from the history to a decision. One file a family of rules.

`list_policies` names those that the package brings along, and `policy_info` says what one does and where its rule
comes from. Any other ``history -> Decision`` is a policy as well.
"""

from lightning_deba.policies.base import BatchSizePolicy, Hold, replay
from lightning_deba.policies.cabs import CABS
from lightning_deba.policies.chain import Chain
from lightning_deba.policies.deba import DEBA, Signals, signals
from lightning_deba.policies.decay import AdaBatch, IncreaseInsteadOfDecay, Seesaw
from lightning_deba.policies.divebatch import DiveBatch
from lightning_deba.policies.goodput import Goodput
from lightning_deba.policies.milestones import Milestones
from lightning_deba.policies.noise import NoiseEstimate, noise_scale
from lightning_deba.policies.noise_policy import NoiseScale
from lightning_deba.policies.norm_test import NormTest
from lightning_deba.policies.plateau import Plateau
from lightning_deba.policies.registry import PolicyInfo, list_policies, policy_info
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

__all__ = [
    "CABS",
    "DEBA",
    "AdaBatch",
    "BatchSizePolicy",
    "Chain",
    "CosineGrowth",
    "Cyclic",
    "DiveBatch",
    "ExponentialGrowth",
    "Goodput",
    "Hold",
    "IncreaseInsteadOfDecay",
    "LinearGrowth",
    "Milestones",
    "NoiseEstimate",
    "NoiseScale",
    "NormTest",
    "OneCycle",
    "Plateau",
    "PolicyInfo",
    "PolynomialGrowth",
    "Seesaw",
    "Signals",
    "SimiGrad",
    "StepGrowth",
    "list_policies",
    "noise_scale",
    "policy_info",
    "replay",
    "signals",
]
