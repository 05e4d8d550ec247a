"""Two processes on the CPU: both change in the same epoch, and together see every sample once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

SCRIPT = """
import json, pathlib, sys
import torch
from lightning.pytorch import Callback
from tests.runs import run
torch.set_num_threads(1)
root, source, actuator, change = pathlib.Path(sys.argv[1]), *sys.argv[2:5]

class OneNaN(Callback):
    def on_after_backward(self, trainer, module):
        if change == "nan" and trainer.global_rank == 1 and trainer.global_step == 2:
            module.layer.weight.grad.fill_(float("nan"))

after = {"grow": {0: 32}, "shrink": {0: 8}, "both": {0: 32, 1: 8}, "nan": {0: 32}}[change]
trainer, scheduler, probe, _ = run(
    after, root, source=source, actuator=actuator, neighbours=[OneNaN()], strategy="ddp_fork", devices=2,
    scheduler_args={"multiple_of": 2})
out = {"epochs": probe.epochs, "seen": probe.seen, "validations": probe.validations,
       "history": [[r.batch_size, r.micro_batch_size, r.samples, r.world_size, r.optimizer_steps, r.skipped_steps]
                   for r in scheduler.history],
       "decisions": [[d.proposed, d.batch_size] for d in scheduler.decisions]}
(root / f"rank{trainer.global_rank}.json").write_text(json.dumps(out))
"""

EXPECTED = {
    "grow": [(16, 4), (32, 2), (32, 2)],
    "shrink": [(16, 4), (8, 8), (8, 8)],
    "both": [(16, 4), (32, 2), (8, 8)],
    "nan": [(16, 4), (32, 2), (32, 2)],
}


def two_processes(root, *arguments):
    """Starts one process a rank, as a cluster does, and returns what each saw."""
    import os
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    code = SCRIPT.replace('"ddp_fork"', '"ddp"')
    ranks = []
    for rank in range(2):
        env = os.environ | {
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2", "LOCAL_RANK": str(rank),
            "NODE_RANK": "0", "RANK": str(rank), "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0",
            "TORCHELASTIC_RUN_ID": "trial",
        }  # fmt: skip
        command = [sys.executable, "-c", code, str(root), *arguments]
        ranks.append(subprocess.Popen(command, cwd=ROOT, env=env, stderr=subprocess.PIPE, text=True))
    try:
        errors = [process.communicate(timeout=120)[1] for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    assert [process.returncode for process in ranks] == [0, 0], errors[0][-2000:] + errors[1][-2000:]
    return [json.loads((root / f"rank{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize(
    ("source", "actuator", "change"),
    [
        ("fit", "in_place", "both"),
        ("datamodule", "reload", "both"),
        ("datamodule", "in_place", "shrink"),
        ("module", "reload", "grow"),
        ("fit", "in_place", "nan"),
    ],
)
def test_both_ranks_change_in_the_same_epoch_and_lose_nothing(source, actuator, change, tmp_path):
    ranks = two_processes(tmp_path, source, actuator, change)
    for rank in ranks:
        assert [(size, steps) for size, _, _, _, steps, _ in rank["history"]] == EXPECTED[change]
        assert rank["epochs"] == [[t, size // 2, steps, 32] for t, (size, steps) in enumerate(EXPECTED[change])]
        assert rank["validations"] == [0, 1, 2]
    for epoch in ("0", "1", "2"):
        assert sorted(ranks[0]["seen"][epoch] + ranks[1]["seen"][epoch]) == list(range(64))
    assert ranks[0]["history"] == ranks[1]["history"]
    assert ranks[0]["decisions"] == ranks[1]["decisions"]
    assert len((tmp_path / "history.jsonl").read_text().splitlines()) == 3
