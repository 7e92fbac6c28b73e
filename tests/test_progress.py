"""How long tasks are stopped."""

import signal

import pytest

from rheobase.progress import interruptible


def test_the_first_interrupt_asks_and_the_second_stops(capsys: pytest.CaptureFixture[str]) -> None:
    usual = signal.getsignal(signal.SIGINT)
    with interruptible() as asked:
        assert not asked.is_set()
        signal.raise_signal(signal.SIGINT)
        assert asked.is_set()
        assert "Ctrl-C again" in capsys.readouterr().err
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is usual


def test_where_interrupts_are_ignored_they_stay_so() -> None:
    usual = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with interruptible() as asked:
            signal.raise_signal(signal.SIGINT)
            assert not asked.is_set()
    finally:
        signal.signal(signal.SIGINT, usual)
