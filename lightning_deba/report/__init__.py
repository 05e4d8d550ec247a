"""Tables and figures from histories, and one self-contained HTML page of them."""

from lightning_deba.report.figures import (
    plot_batch_size,
    plot_history,
    plot_loss,
    plot_seconds,
    plot_signal,
)
from lightning_deba.report.page import write_figure, write_report
from lightning_deba.report.tables import summary_table

__all__ = [
    "plot_batch_size",
    "plot_history",
    "plot_loss",
    "plot_seconds",
    "plot_signal",
    "summary_table",
    "write_figure",
    "write_report",
]
