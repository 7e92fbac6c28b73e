"""A log for TensorBoard has the measurements of every epoch."""

import sys
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rheobase.io import Ranks
from rheobase.training import Recipe, TensorBoard, tensorboard, train
from textures import network, textures


def test_the_log_has_the_measurements_of_every_epoch(tmp_path: Path) -> None:
    trained = train(network(), textures(), Recipe(2, 8, 0.01), progress=False, on_epoch=TensorBoard(tmp_path))
    log = EventAccumulator(str(tmp_path)).Reload()
    for name in ("loss", "accuracy", "learning_rate", "seconds"):
        events = log.Scalars(name)
        assert [event.step for event in events] == [1, 2]
        expected = [getattr(epoch, name) for epoch in trained.history]
        assert [event.value for event in events] == pytest.approx(expected)
    clips = trained.history[-1].clips
    assert clips
    for site, clip in clips.items():
        assert log.Scalars(f"clip/{site}")[-1].value == pytest.approx(clip)


def test_of_several_processes_only_the_first_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorboard, "present_ranks", lambda: Ranks(1, 2))
    train(network(), textures(), Recipe(1, 8, 0.01), progress=False, on_epoch=TensorBoard(tmp_path))
    assert not list(tmp_path.iterdir())


def test_without_the_package_the_error_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(ModuleNotFoundError, match="pip install tensorboard"):
        TensorBoard(tmp_path)
