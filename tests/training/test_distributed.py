"""Two processes over gloo do what one does, and neither waits forever for a dead one."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed as dist
from torch import nn

from rheobase import Patience, Uniform, convert, evaluate
from rheobase.analysis.evaluation import Evaluation, accuracy
from rheobase.io.tensors import load_weights, read_tensors, save_weights
from rheobase.network.activations import Clip
from rheobase.papers import records
from rheobase.papers.paper import Cell, Paper, Row
from rheobase.papers.reproduction import reproduce
from rheobase.training import state
from rheobase.training.datasets.split import Split
from rheobase.training.recipe import Recipe
from rheobase.training.state import Epoch
from rheobase.training.trainer import Trained, train

RECIPE = Recipe(epochs=3, batch_size=16, learning_rate=0.05, augment="crop-flip", seed=3)


def images(count: int = 101) -> Split:
    draws = torch.Generator().manual_seed(1)
    pixels = torch.randint(0, 256, (count, 1, 6, 6), generator=draws, dtype=torch.uint8)
    return Split(pixels, torch.arange(count) % 4, (0.5,), (0.3,))


def network() -> nn.Sequential:
    """A network without batch norm, whose statistics processes do not join."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), Clip(), nn.Flatten(), nn.Linear(144, 16), Clip(), nn.Linear(16, 4)
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two processes left behind that did every job below together."""
    folder = tmp_path_factory.mktemp("together")
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    script = [sys.executable, __file__, str(folder)]
    subprocess.run(script, timeout=100, env=environment, check=True)
    return folder


def statuses(folder: Path, job: str) -> list[int]:
    return json.loads((folder / f"{job}.json").read_text())  # type: ignore[no-any-return]


def alone(**options: Any) -> Trained:
    return train(network(), images(), RECIPE, progress=False, **options)


def close(left: nn.Module, right: nn.Module) -> None:
    for name, tensor in left.state_dict().items():
        torch.testing.assert_close(tensor, right.state_dict()[name], rtol=1e-5, atol=1e-5)


def report(folder: Path, rank: int) -> dict[str, Any]:
    return json.loads((folder / f"rank{rank}.json").read_text())  # type: ignore[no-any-return]


def test_the_weights_are_those_of_one_process_with_the_joint_batch(folder: Path) -> None:
    assert statuses(folder, "learn") == [0, 0]
    expected = alone().model
    for rank in range(2):
        together = network()
        load_weights(together, folder / f"rank{rank}.safetensors")
        close(together, expected)
        assert not torch.equal(together[0].weight, network()[0].weight)


def test_all_end_with_one_network_and_its_statistics(folder: Path) -> None:
    assert statuses(folder, "learn_statistics") == [0, 0]
    first, second = (read_tensors(folder / f"norms{rank}.safetensors")[0] for rank in range(2))
    saved = read_tensors(folder / "norms.safetensors")[0]
    for name, tensor in first.items():
        assert torch.equal(tensor, second[name])
        assert torch.equal(tensor, saved[f"model.{name}"])


def test_the_history_is_joint(folder: Path) -> None:
    expected = alone().history
    for rank in range(2):
        together = [Epoch(**epoch) for epoch in report(folder, rank)["history"]]
        for ours, theirs in zip(together, expected, strict=True):
            assert ours.accuracy == pytest.approx(theirs.accuracy, abs=150 / 96)  # one image may tip
            assert ours.loss == pytest.approx(theirs.loss, rel=1e-5)
            assert ours.clips == pytest.approx(theirs.clips, rel=1e-5)


@pytest.mark.parametrize("batch_size", [7, 100, 1000])
def test_every_image_is_evaluated_once(folder: Path, batch_size: int) -> None:
    model = network()
    load_weights(model, folder / "rank0.safetensors")
    right = accuracy(model, images(), batch_size)
    assert [report(folder, rank)[f"accuracy {batch_size}"] for rank in range(2)] == [right, right]


@pytest.mark.parametrize("batch_size", [7, 100, 1000])
def test_every_image_is_run_in_spikes_once(folder: Path, batch_size: int) -> None:
    """The last batch is a partial one; with the largest size the second process has none at all."""
    assert statuses(folder, "run_in_spikes") == [0, 0]
    one = asdict(run(batch_size))
    del one["seconds"], one["backend"]  # each process names the routines it ran itself
    for rank in range(2):
        assert json.loads((folder / f"spikes{rank}.json").read_text())[str(batch_size)] == one


def run(batch_size: int) -> Evaluation:
    snn = convert(network(), "max-norm", images(16), initial=Uniform(seed=5))
    rule = Patience(2) if batch_size == 7 else None
    return evaluate(snn, images(), 6, batch_size=batch_size, exit_rule=rule, progress=False)


def test_only_the_first_process_writes_and_shows(folder: Path) -> None:
    assert report(folder, 0)["wrote"] == 4  # after every fifth step of eighteen, and at the end
    assert report(folder, 1)["wrote"] == 0
    assert (folder / "shown").read_text().count("epoch ") == RECIPE.epochs


def test_one_process_goes_on_where_two_stopped(folder: Path) -> None:
    """The checkpoint is from the middle of an epoch, so its sums must be those of both processes."""
    resumed = alone(checkpoint=folder / "middle.safetensors")
    assert resumed.notes[0] == "resumed after epoch 1, step 4 of the next"
    whole = alone()
    close(resumed.model, whole.model)
    for ours, theirs in zip(resumed.history, whole.history, strict=True):
        assert ours.loss == pytest.approx(theirs.loss, rel=1e-5)


def test_when_one_is_killed_the_other_fails_and_the_checkpoint_stays(folder: Path) -> None:
    survivor, dead = statuses(folder, "die")
    assert dead == -signal.SIGKILL
    assert survivor > 0
    resumed = alone(checkpoint=folder / "survivor.safetensors")
    assert resumed.notes[0].startswith("resumed after epoch 2,")
    close(resumed.model, alone().model)


def test_a_cell_is_trained_together_and_recorded_once(folder: Path) -> None:
    assert statuses(folder, "reproduce_together") == [0, 0]
    (record,) = records.load_all(folder / "results")
    assert (record.model, record.method, record.images) == ("small", "opi", 64)
    assert len(list((folder / "runs").rglob("*.safetensors"))) == 2  # the checkpoint and the weights
    given = [(folder / f"record{rank}").read_text() for rank in range(2)]
    assert given[0] == given[1] == json.dumps(record.accuracy)


def test_different_checkpoints_are_refused(folder: Path) -> None:
    assert statuses(folder, "disagree") == [1, 1]
    for rank in range(2):
        assert "the processes found different checkpoints" in (folder / f"disagree{rank}").read_text()


def learn(rank: int, folder: Path) -> None:
    written, write = [], state.write_tensors
    path = folder / "last.safetensors"

    def count(*arguments: Any) -> None:
        written.append(arguments)
        write(*arguments)
        if len(written) == 2:  # after ten steps: one epoch of six, and four of the next
            (folder / "middle.safetensors").write_bytes(path.read_bytes())

    state.write_tensors = count
    sys.stderr = (folder / "shown").open("a")
    trained = train(network(), images(), RECIPE, checkpoint=path, save_every=5)
    sys.stderr.close()
    sys.stderr = sys.__stderr__
    rates = {f"accuracy {size}": accuracy(trained.model, images(), size) for size in (7, 100, 1000)}
    history = [asdict(epoch) for epoch in trained.history]
    (folder / f"rank{rank}.json").write_text(json.dumps({"history": history, "wrote": len(written), **rates}))
    state.write_tensors = write
    save_weights(trained.model, folder / f"rank{rank}.safetensors")


def learn_statistics(rank: int, folder: Path) -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), Clip(), nn.Flatten(), nn.Linear(64, 4))
    trained = train(model, images(), RECIPE, checkpoint=folder / "norms.safetensors", progress=False)
    save_weights(trained.model, folder / f"norms{rank}.safetensors")


def run_in_spikes(rank: int, folder: Path) -> None:
    found = {}
    for batch_size in (7, 100, 1000):
        found[batch_size] = asdict(run(batch_size))
        del found[batch_size]["seconds"], found[batch_size]["backend"]
    (folder / f"spikes{rank}.json").write_text(json.dumps(found))


def die(rank: int, folder: Path) -> None:
    def end(epoch: Epoch, model: nn.Module) -> None:
        if rank == 1 and epoch.number == 2:
            os.kill(os.getpid(), signal.SIGKILL)

    path = folder / "survivor.safetensors"
    train(network(), images(), RECIPE, checkpoint=path, save_every=6, on_epoch=end, progress=False)


def disagree(rank: int, folder: Path) -> None:
    path = folder / f"{rank}.safetensors"
    if rank == 0:
        path.write_bytes((folder / "middle.safetensors").read_bytes())
    train(network(), images(), RECIPE, checkpoint=path, progress=False)


def toy() -> Paper:
    row = Row("Ours", "opi", 99.0, {2: 98.0})
    cell = Cell("small-digits", "Small", "table 1", "small", "digits", "digits", (row,))
    return Paper("toy", "A toy", "Nobody", "opi", "half", (2,), ("T=2",), (cell,))


def reproduce_together(rank: int, folder: Path) -> None:
    (record,) = reproduce(
        toy(), "small-digits", folder=folder / "results", runs=folder / "runs", epochs=2, limit=64,
        commit="abc", progress=False,
    )  # fmt: skip
    (folder / f"record{rank}").write_text(json.dumps(record.accuracy))


def do_together(job: Callable[[int, Path], None], folder: Path) -> None:
    """Fork two processes after the imports, which take longer than all they do, and note how each ends."""
    children = []
    for rank in range(2):
        child = os.fork()
        if child == 0:
            try:
                meeting = f"file://{folder}/meeting-to-{job.__name__}"
                dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2)
                job(rank, folder)
                os._exit(0)
            except BaseException as error:
                (folder / f"{job.__name__}{rank}").write_text(repr(error))
                os._exit(1)
        children.append(child)
    ends = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    (folder / f"{job.__name__}.json").write_text(json.dumps(ends))


if __name__ == "__main__":
    torch.set_num_threads(1)
    alone()
    for job in (learn, learn_statistics, run_in_spikes, die, disagree, reproduce_together):
        do_together(job, Path(sys.argv[1]))
