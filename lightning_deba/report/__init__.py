"""Tables and figures from histories and characterizations, and one self-contained HTML page of either."""

from lightning_deba.report.figures import (
    plot_batch_size,
    plot_history,
    plot_loss,
    plot_seconds,
    plot_signal,
)
from lightning_deba.report.page import write_figure, write_report
from lightning_deba.report.policy_figures import plot_noise_scale, plot_replay
from lightning_deba.report.profile_figures import plot_evidence, plot_profile, plot_sizes, plot_throughput
from lightning_deba.report.profile_page import write_profile_report
from lightning_deba.report.tables import summary_table

__all__ = [
    "plot_batch_size",
    "plot_evidence",
    "plot_history",
    "plot_loss",
    "plot_noise_scale",
    "plot_profile",
    "plot_replay",
    "plot_seconds",
    "plot_signal",
    "plot_sizes",
    "plot_throughput",
    "summary_table",
    "write_figure",
    "write_profile_report",
    "write_report",
]
