"""Policies decide: a pure function from the history to a decision. One file a family of rules."""

from lightning_deba.policies.base import BatchSizePolicy, Hold, replay
from lightning_deba.policies.deba import DEBA, Signals, signals

__all__ = ["DEBA", "BatchSizePolicy", "Hold", "Signals", "replay", "signals"]
