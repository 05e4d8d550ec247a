from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from lightning.pytorch import LightningDataModule, LightningModule
from torch.utils.data import DataLoader, TensorDataset

from lightning_deba import DEBA, Decision, EpochRecord, Grant, Hold, read_history, replay
from lightning_deba.characterization import Characterization
from lightning_deba.cli import COMMANDS, main
from lightning_deba.cli.errors import in_one_line
from lightning_deba.policies.registry import policy_info
from lightning_deba.presets import Preset, get_preset, list_presets, match_preset, preset_to_yaml
from lightning_deba.records import to_line

SMALL = [
    *["--model.model_name", "test_resnet"],
    *["--data.train_samples", "60", "--data.val_samples", "20", "--data.image_size", "16"],
    *["--trainer.max_epochs", "2", "--trainer.accelerator", "cpu", "--threads", "1"],
    *["--trainer.enable_progress_bar", "false", "--trainer.enable_model_summary", "false"],
]


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("JSONARGPARSE_DEBUG", raising=False)


@pytest.fixture
def run(tmp_path) -> Path:
    """A recorded run of twelve calm epochs, in which the batch size was really held."""
    counts = {"optimizer_steps": 32, "samples": 1024, "seconds": 1.5}
    records = [
        EpochRecord(t, 32, 32, loss=0.99**t, gradient_norm=0.99**t, component_variance=1e-8 * 0.98**t, **counts)
        for t in range(12)
    ]
    folder = tmp_path / "run"
    folder.mkdir()
    lines = [to_line(record, Grant(record.epoch, 32, 32, "fixed batch size")) for record in records]
    (folder / "history.jsonl").write_text("\n".join(lines))
    return folder


def shown(capsys) -> list[list[str]]:
    """The rows of a printed table, without its head."""
    lines = capsys.readouterr().out.splitlines()
    start = next(i for i, line in enumerate(lines) if set(line) == {"─"})
    return [re.split(r"\s{2,}", line.strip()) for line in lines[start + 1 :]]


class OwnModel(LightningModule):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, width)

    def training_step(self, batch, batch_idx):
        return self.layer(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class OwnData(LightningDataModule):
    def __init__(self, batch_size: int = 5) -> None:
        super().__init__()
        self.batch_size = batch_size

    def train_dataloader(self):
        return DataLoader(TensorDataset(torch.randn(20, 2)), self.batch_size)


# Help


def test_help_names_every_command(capsys):
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(re.search(rf"^  {command} ", out, re.MULTILINE) for command in COMMANDS)


def test_no_command_shows_the_help_and_is_an_error(capsys):
    assert main([]) == 2
    assert capsys.readouterr().out.startswith("usage: lightning-deba COMMAND")


@pytest.mark.parametrize("command", [*COMMANDS, "presets show"])
def test_every_command_explains_itself(command, capsys):
    with pytest.raises(SystemExit) as caught:
        main([*command.split(), "--help"])
    assert caught.value.code == 0
    usage, *rest = capsys.readouterr().out.splitlines()
    assert usage.startswith(f"usage: lightning-deba {command}")
    assert any(line.startswith("  -h, --help") for line in rest)


def test_the_console_script_is_this_one():
    (script,) = importlib.metadata.entry_points(group="console_scripts", name="lightning-deba")
    assert script.load() is main


def test_the_package_can_be_run():
    done = subprocess.run([sys.executable, "-m", "lightning_deba", "nonsense"], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == (f"lightning-deba: no command 'nonsense'; the commands are {', '.join(COMMANDS)}\n")


def test_the_console_script_finds_a_model_in_the_current_folder(tmp_path):
    model = "from lightning_deba.vision import ImageClassifier\n\n\nclass Net(ImageClassifier):\n    pass\n"
    Path("nets_of_mine.py").write_text(model)
    script = "import sys; sys.path = [p for p in sys.path if p]; from lightning_deba.cli import main; sys.exit(main())"
    words = ["fit", "--model", "nets_of_mine.Net", "--model.model_name", "test_resnet", "--print_config"]
    done = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "class_path: nets_of_mine.Net" in done.stdout


def test_commands_that_train_nothing_start_without_torch(run):
    # The package's own `__init__` is left out: this is about the commands.
    package = Path(sys.modules["lightning_deba"].__file__).parent
    script = (
        "import sys, types; package = types.ModuleType('lightning_deba'); "
        f"package.__path__ = [{str(package)!r}]; package.__version__ = '0'; sys.modules['lightning_deba'] = package; "
        f"from lightning_deba.cli import main; main(['presets']); main(['replay', {str(run)!r}, '--preset', 'vit']); "
        "print(sorted({'torch', 'lightning', 'timm', 'matplotlib'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


# Presets


def test_all_presets_are_listed_with_their_numbers(capsys):
    assert main(["presets"]) == 0
    rows = {row[0]: row for row in shown(capsys)}
    assert list(rows) == list_presets()
    for name, (_, confidence, stability, cooldown, score, verdict, architectures, source) in rows.items():
        policy = get_preset(name).policy
        assert score == ("-" if get_preset(name).score is None else f"{get_preset(name).score:.2f}")
        assert verdict == (get_preset(name).verdict or "-")
        assert (float(confidence), float(stability)) == (policy.confidence_threshold, policy.stability_threshold)
        assert int(cooldown) == policy.cooldown
        assert ", ".join(get_preset(name).architectures).startswith(architectures.rstrip("…"))
        assert get_preset(name).source.startswith(source.rstrip("…"))


def test_presets_are_listed_by_pattern(capsys):
    assert main(["presets", "resnet*"]) == 0
    assert [row[0] for row in shown(capsys)] == list_presets("resnet*")


def test_a_pattern_without_a_preset_is_an_error(capsys):
    assert main(["presets", "resnet18"]) == 2
    assert "no preset is named 'resnet18'; `lightning-deba presets show MODEL`" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["vit", "vit_base_patch16_224.augreg_in21k"])
def test_a_preset_is_shown_whole_by_its_name_or_by_a_model_s(name, capsys):
    assert main(["presets", "show", name]) == 0
    words = " ".join(capsys.readouterr().out.split())
    preset = get_preset("vit")
    assert words.startswith("name vit ")
    for text in (", ".join(preset.architectures), preset.source, preset.note):
        assert text in words
    for field, value in vars(preset.policy).items():
        assert f"{field} {value}" in words


# Policies


def test_the_policies_are_listed_by_pattern(capsys):
    assert main(["policies", "*batch"]) == 0
    assert [row[:2] for row in shown(capsys)] == [
        [name, policy_info(name).description] for name in ("AdaBatch", "DiveBatch")
    ]
    assert main(["policies", "nobody"]) == 2
    assert "no policy is named 'nobody'" in capsys.readouterr().err


# Characterization

CHARACTERIZE = [
    *["characterize", "--model", "ImageClassifier", "--model.model_name", "test_resnet", "--model.lr", "0.01"],
    *["--data", "DigitsDataModule", "--data.train_samples", "64", "--data.image_size", "16", "--data.batch_size", "16"],
    *["--epochs", "9", "--seeds", "2", "--batch_sizes", "[16, 32]", "--threads", "1"],
]


def test_a_characterization_writes_profile_preset_and_page(tmp_path, capsys):
    assert main(CHARACTERIZE) == 0
    shown = capsys.readouterr().out
    found = Characterization.read("profile.json")
    assert [len(history) for history in found.profile.histories] == [9, 9]
    assert found.about["command"] == "lightning-deba " + " ".join(CHARACTERIZE)
    preset = match_preset("profile.yaml")
    assert (preset.name, preset.architectures) == ("test_resnet_own", ("test_resnet",))
    assert (preset.policy, preset.verdict) == (found.policy, found.verdict.word)
    assert found.verdict.word in shown
    assert found.verdict.word.replace("'", "&#39;") in Path("profile.html").read_text()
    # Once more: nothing is trained again, and the same is found.
    assert main(CHARACTERIZE) == 0
    assert Characterization.read("profile.json") == found
    assert main(["fit", *SMALL, "--trainer.callbacks.preset", "profile.yaml"]) == 0


@pytest.mark.parametrize("output", ["nowhere/profile.json", "."])
def test_an_output_that_cannot_be_written_is_found_before_the_runs(output, capsys):
    assert main([*CHARACTERIZE, "-o", output]) == 2
    assert "`output` must be a file in a folder that can be written to" in capsys.readouterr().err
    assert not list(Path().rglob("history.jsonl"))


@pytest.mark.parametrize("output", ["profile.yaml", "profile.html"])
def test_an_output_that_its_own_preset_or_page_would_overwrite_is_refused(output, capsys):
    assert main([*CHARACTERIZE, "-o", output]) == 2
    assert f"write 'profile.json', got '{output}'" in capsys.readouterr().err
    assert not list(Path().rglob("history.jsonl"))


def test_too_few_epochs_to_characterize_are_one_clear_line(capsys):
    assert main([*CHARACTERIZE, "--epochs", "5"]) == 2
    assert "`epochs` must be at least 8 to say anything, got 5" in capsys.readouterr().err


# Replay


def test_a_replay_tells_epoch_by_epoch_what_the_policy_would_have_decided(run, capsys):
    assert main(["replay", str(run)]) == 0
    *rows, caption = shown(capsys)
    decisions = replay(DEBA(), read_history(run).history)
    assert [row[:3] for row in rows] == [[str(t), "32", str(d.batch_size)] for t, d in enumerate(decisions)]
    assert [row[3] for row in rows] == [d.reason for d in decisions]
    assert caption == ["8 increases and 0 rollbacks in 12 epochs"]


def test_a_replay_takes_a_preset_by_a_model_s_name_and_overrides_it(run, capsys):
    main(["replay", str(run), "--preset", "resnet50"])
    *by_preset, _ = shown(capsys)
    assert f"< {match_preset('resnet50').policy.stability_threshold:g}," in by_preset[-1][3]
    main(["replay", str(run), "--preset", "resnet50", "--cooldown", "9", "--confidence_threshold", "1.125"])
    *overridden, _ = shown(capsys)
    assert overridden[7][3].startswith("hold in the cooldown (8 of 9 epochs at 32)")
    assert "<= 1.125, " in overridden[-1][3]
    assert f"< {match_preset('resnet50').policy.stability_threshold:g}," in overridden[-1][3]


def test_a_replay_takes_a_preset_with_another_policy_as_it_is(run, capsys):
    Path("own.yaml").write_text(preset_to_yaml(Preset("own", ("toy",), Hold(), "a guess")))
    assert main(["replay", str(run), "--preset", "own.yaml"]) == 0
    *rows, _ = shown(capsys)
    assert {row[3] for row in rows} == {"fixed batch size"}
    assert main(["replay", str(run), "--preset", "own.yaml", "--cooldown", "9"]) == 2
    assert "has Hold(), which takes no parameters of DEBA" in capsys.readouterr().err


def test_a_window_can_be_the_full_history(run, capsys):
    assert main(["replay", str(run), "--window", "null"]) == 0
    *rows, _ = shown(capsys)
    assert [int(row[2]) for row in rows] == [d.batch_size for d in replay(DEBA(window=None), read_history(run).history)]


def test_lines_that_cannot_be_read_are_told(run, capsys):
    with (run / "history.jsonl").open("a") as file:
        file.write("\n{broken")
    assert main(["replay", str(run)]) == 0
    assert "line 13 of" in capsys.readouterr().err


# Report


def test_a_report_is_written_where_it_is_wanted(run, tmp_path, capsys):
    assert main(["report", str(run), "-o", str(tmp_path / "page.html")]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "page.html")
    assert "<html" in (tmp_path / "page.html").read_text()


def test_a_report_is_written_into_the_run_by_default(run):
    assert main(["report", str(run)]) == 0
    assert (run / "report.html").is_file()


# Training


def test_fit_then_test_from_the_checkpoint(tmp_path, capsys):
    assert main(["fit", *SMALL]) == 0
    folder = tmp_path / "lightning_logs" / "version_0"
    assert [record.samples for record in read_history(folder).history] == [60, 60]
    (checkpoint,) = (folder / "checkpoints").glob("*.ckpt")
    capsys.readouterr()
    # The checkpoint knows the model; what else the run had is in its configuration.
    assert main(["test", "--config", str(folder / "config.yaml"), "--ckpt_path", str(checkpoint)]) == 0
    tested = capsys.readouterr().out
    assert re.search(r"test/accuracy\s", tested)
    assert re.search(r"test/loss\s", tested)


def test_a_run_goes_on_from_its_checkpoint(tmp_path):
    main(["fit", *SMALL])
    (checkpoint,) = (tmp_path / "lightning_logs" / "version_0" / "checkpoints").glob("*.ckpt")
    assert main(["fit", *SMALL, "--trainer.max_epochs", "3", "--ckpt_path", str(checkpoint)]) == 0
    history = read_history(tmp_path / "lightning_logs" / "version_1").history
    assert [record.epoch for record in history] == [0, 1, 2]


def test_without_a_word_the_digits_are_trained_with_a_preset(tmp_path):
    limits = ["--trainer.max_epochs", "1", "--trainer.limit_train_batches", "1", "--trainer.limit_val_batches", "1"]
    assert main(["fit", "--trainer.accelerator", "cpu", *limits]) == 0
    run = json.loads((tmp_path / "lightning_logs" / "version_0" / "run.json").read_text())
    assert run["preset"]["name"] == "mobilenet"
    assert read_history(tmp_path / "lightning_logs" / "version_0").history[0].batch_size == 32


class FitsOnly(OwnModel):
    """A device with room for so many samples."""

    def __init__(self, room: int = 4) -> None:
        super().__init__()
        self.room = room

    def training_step(self, batch, batch_idx):
        if len(batch[0]) > self.room:
            raise torch.OutOfMemoryError("CUDA out of memory (simulated)")
        return super().training_step(batch, batch_idx)


def fit_into(room, *more):
    words = ["--data", "tests.test_cli.OwnData", "--trainer.max_epochs", "2", "--trainer.accelerator", "cpu"]
    callbacks = ["--trainer.callbacks.policy", "lightning_deba.Hold", "--trainer.callbacks.min_batch_size", "1"]
    return main(["fit", "--model", "tests.test_cli.FitsOnly", "--model.room", str(room), *words, *callbacks, *more])


@pytest.mark.filterwarnings("ignore:Out of memory")
def test_out_of_memory_the_run_goes_on_by_itself_where_it_is_told_so(tmp_path):
    assert fit_into(4, "--data.batch_size", "16", "--on_oom", "resume") == 0
    records = read_history(next(tmp_path.rglob("history.jsonl"))).history
    assert [(r.epoch, r.batch_size, r.micro_batch_size, r.accumulation) for r in records] == [
        (0, 16, 4, 4),
        (1, 16, 4, 4),
    ]


@pytest.mark.filterwarnings("ignore:Out of memory")
@pytest.mark.parametrize("more", [(), ("--on_oom", "resume")])
def test_out_of_memory_it_stops_at_once_or_after_three_times(more, tmp_path):
    with pytest.raises(torch.OutOfMemoryError):
        fit_into(0, "--data.batch_size", "32", *more)
    saved = list(tmp_path.rglob("out_of_memory*.ckpt"))
    assert len(saved) == 1


def test_the_number_of_threads_can_be_set():
    assert main(["fit", *SMALL, "--threads", "2", "--trainer.max_epochs", "1"]) == 0
    assert torch.get_num_threads() == 2


def test_a_policy_can_be_written_on_the_command_line(tmp_path):
    policy = ["--trainer.callbacks.policy", "lightning_deba.DEBA", "--trainer.callbacks.policy.cooldown", "1"]
    assert main(["fit", *SMALL, *policy, "--trainer.callbacks.max_batch_size", "64"]) == 0
    run = json.loads((tmp_path / "lightning_logs" / "version_0" / "run.json").read_text())
    assert (run["policy"]["name"], run["policy"]["parameters"]["cooldown"]) == ("DEBA", 1)


def test_a_preset_can_be_written_on_the_command_line(tmp_path):
    assert main(["fit", *SMALL, "--trainer.callbacks.preset", "vit_base_patch16_224"]) == 0
    run = json.loads((tmp_path / "lightning_logs" / "version_0" / "run.json").read_text())
    assert run["preset"]["name"] == "vit"


def test_model_and_data_of_ones_own_are_trained(tmp_path):
    own = ["--model", "tests.test_cli.OwnModel", "--data", "tests.test_cli.OwnData", "--data.batch_size", "10"]
    rest = ["--trainer.callbacks.policy", "lightning_deba.Hold", "--trainer.max_epochs", "1"]
    assert main(["fit", *own, *rest, "--trainer.accelerator", "cpu"]) == 0
    (record,) = read_history(tmp_path / "lightning_logs" / "version_0").history
    assert (record.batch_size, record.optimizer_steps) == (10, 2)


def test_short_names_and_the_optimizer_are_taken_from_a_file(tmp_path):
    (tmp_path / "adam.yaml").write_text(
        "model:\n  class_path: ImageClassifier\n  init_args:\n    optimizer:\n"
        "      class_path: torch.optim.AdamW\n      init_args: {lr: 0.002}\n"
        "    lr_scheduler:\n      class_path: torch.optim.lr_scheduler.StepLR\n"
        "      init_args: {step_size: 1, gamma: 0.5}\n"
        "data: {class_path: DigitsDataModule}\n"
    )
    assert main(["fit", *SMALL, "--config", "adam.yaml"]) == 0
    history = read_history(tmp_path / "lightning_logs" / "version_0").history
    assert [record.learning_rate for record in history] == pytest.approx([0.002, 0.001])


# Errors: one line, and code 2


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("nonsense", f"no command 'nonsense'; the commands are {', '.join(COMMANDS)}"),
        ("presets show resnet_18", "got 'resnet_18'. Did you mean 'resnet18'"),
        ("presets show", "the following arguments are required: name"),
        ("replay", "the following arguments are required: history"),
        ("replay nowhere", "No history at 'nowhere'"),
        ("replay nowhere --preset nonsense", "got 'nonsense'"),
        ("replay nowhere --cooldown x", "`cooldown`: expected int. Got value: x"),
        ("replay nowhere --cooldown -1", "`cooldown` of DEBA must be 0 or more epochs, got -1"),
        ("report nowhere", "nowhere"),
        ("fit --nonsense 3", "unrecognized arguments: --nonsense 3"),
        ("fit --config nowhere.yaml", "`config`: File does not exist: "),
        ("fit --threads 0", "`threads`: Not of type PositiveInt"),
        ("fit --trainer.max_epochs x", "`trainer.max_epochs`: expected int. Got value: x"),
        ("fit --trainer.accelerator nonsense", "invalid accelerator name: `accelerator='nonsense'`"),
        ("fit --trainer.callbacks.min_batch_size 0", "`min_batch_size` must be from 1 to `max_batch_size`, got 0"),
        ("fit --trainer.callbacks.preset nonsense", "or a preset, got 'nonsense'"),
        ("fit --model Nonsense", "`model`: no class 'Nonsense'; give its import path"),
        ("fit --model.nonsense 3", "`model`: Option 'nonsense' is not accepted"),
        ("fit --model.model_name resnet_18", "`model_name` must be a timm model, got 'resnet_18'. Did you mean"),
        ("fit --model.lr 1 --model.optimizer torch.optim.SGD --model.optimizer.lr 1", "`lr` belongs to the default"),
        ("fit --data torch.nn.Linear", "`data`: Import path does not correspond to a subclass of LightningDataModule"),
        ("fit --data.batch_size x", "`data.batch_size`: expected int. Got value: x"),
        ("fit --data.batch_size 0", "`batch_size` must be 1 or more, got 0"),
        ("fit --data.train_samples 9999 --trainer.accelerator cpu", "`train_samples` and `val_samples` must together"),
        ("test --ckpt_path nowhere.ckpt --trainer.accelerator cpu", "nowhere.ckpt"),
    ],
)
def test_an_error_is_one_clear_line(words, expected, capsys):
    assert main(words.split()) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("lightning-deba: ")
    assert expected in last


@pytest.mark.parametrize(
    ("yaml", "expected"),
    [
        ("trainer:\n  max_epochs: [1", "Problems parsing config: "),
        ("trainer:\n  max_epoch: 3", "max_epoch"),
        ("policy: {class_path: lightning_deba.DEBA, init_args: {coldown: 3}}", "Option 'coldown' is not accepted"),
        ("policy: {class_path: lightning_deba.DEBA, init_args: {cooldown: -3}}", "0 or more epochs, got -3"),
        ("policy: {class_path: lightning_deba.Dbea}", "module 'lightning_deba' has no attribute 'Dbea'"),
    ],
)
def test_an_error_in_a_file_is_one_clear_line(yaml, expected, tmp_path, capsys):
    if yaml.startswith("policy"):
        scheduler = f"{{class_path: lightning_deba.BatchSizeScheduler, init_args: {{{yaml}}}}}"
        yaml = f"trainer: {{callbacks: [{scheduler}]}}"
    (tmp_path / "wrong.yaml").write_text(yaml)
    assert main(["fit", "--config", "wrong.yaml"]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("lightning-deba: ")
    assert expected in last
    assert "Subtypes" not in last


def test_data_that_are_not_there_are_one_clear_line(tmp_path, monkeypatch, capsys):
    from torchvision.datasets import FashionMNIST

    def fails(self):
        raise OSError("no network")

    monkeypatch.setattr(FashionMNIST, "download", fails)
    assert main(["fit", *SMALL, "--data", "FashionMNISTDataModule"]) == 2
    assert "its four idx .gz files" in capsys.readouterr().err.splitlines()[-1]


def test_what_lightning_refuses_is_one_clear_line(capsys):
    own = ["--model", "tests.test_cli.OwnModel", "--data", "tests.test_cli.OwnData", "--trainer.accelerator", "cpu"]
    assert main(["validate", *own]) == 2
    assert "No `validation_step()` method defined" in capsys.readouterr().err.splitlines()[-1]


def test_a_fault_of_the_program_keeps_its_trace(monkeypatch):
    def faulty(self, batch, batch_idx):
        raise RuntimeError("a fault")

    monkeypatch.setattr(OwnModel, "training_step", faulty)
    own = ["--model", "tests.test_cli.OwnModel", "--data", "tests.test_cli.OwnData", "--trainer.accelerator", "cpu"]
    with pytest.raises(RuntimeError, match="a fault"):
        main(["fit", *own, "--trainer.callbacks.policy", "lightning_deba.Hold"])


def test_the_trace_of_an_error_can_be_seen(monkeypatch):
    monkeypatch.setenv("JSONARGPARSE_DEBUG", "true")
    with pytest.raises(FileNotFoundError, match="No history"):
        main(["replay", "nowhere"])


def test_a_message_of_several_lines_becomes_one():
    assert in_one_line("one\n  two\n\nthree") == "one two three"


def test_decisions_are_values_that_a_table_needs_no_policy_for():
    from lightning_deba.cli.commands import replay_table

    table = replay_table([EpochRecord(3, 32, 32)] * 2, [Decision(48, "up"), Decision(25, "down [red]")])
    assert [list(column.cells) for column in table.columns] == [
        ["3", "3"],
        ["32", "32"],
        ["48", "25"],
        ["up", "down [red]"],
    ]
    assert table.caption == "1 increases and 1 rollbacks in 2 epochs"
