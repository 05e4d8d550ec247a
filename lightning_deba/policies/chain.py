"""Several policies as one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lightning_deba.policies.base import BatchSizePolicy, check, needs_noise_scale
from lightning_deba.records import Decision, History


@dataclass(frozen=True)
class Chain:
    """Asks several policies in order, and does what the first one says that is not for holding.

    So an earlier policy goes before a later one, and a policy that seldom moves, such as `Milestones`, leaves the
    rest of the time to the next. All see the same history, whoever brought its batch sizes about: a cooldown
    counts from the last change of any of them.

    Args:
        policies: The policies, the first to be heard first.

    Raises:
        ValueError: If there is none, or one of them cannot be called.

    Note:
        It is no product of factors and no vote. For anything else, such as one policy after another by epoch,
        write a function: any ``history -> Decision`` is a policy.

    Example:
        >>> from lightning_deba import EpochRecord
        >>> from lightning_deba.policies import Milestones, Plateau
        >>> policy = Chain([Milestones(epochs={2: 64}), Plateau(patience=1)])
        >>> run = [EpochRecord(t, 32, 32, loss=1.0) for t in range(3)]
        >>> policy(run[:1]).batch_size, policy(run[:2]).reason, policy(run).batch_size
        (32, 'Milestones: increase: 64 from epoch 2 on', 64)
    """

    policies: Sequence[BatchSizePolicy]

    def __post_init__(self) -> None:
        holds = isinstance(self.policies, Sequence) and bool(self.policies)
        holds = holds and all(callable(policy) and not isinstance(policy, type) for policy in self.policies)
        check(self, "policies", holds, "one policy or more, such as [Plateau(), DEBA()]")
        object.__setattr__(self, "policies", tuple(self.policies))

    @property
    def needs_noise_scale(self) -> bool:
        """Whether one of them does."""
        return any(needs_noise_scale(policy) for policy in self.policies)

    def __call__(self, history: History, /) -> Decision:
        """Decides the batch size of the next epoch."""
        size = history[-1].batch_size
        asked = [(_name(policy), policy(history)) for policy in self.policies]
        signals = {name: value for _, decision in reversed(asked) for name, value in decision.signals.items()}
        for name, decision in asked:
            if decision.batch_size != size:
                return Decision(decision.batch_size, f"{name}: {decision.reason}", signals)
        return Decision(size, "; ".join(f"{name}: {decision.reason}" for name, decision in asked), signals)


def _name(policy: BatchSizePolicy) -> str:
    return getattr(policy, "__name__", type(policy).__name__)
