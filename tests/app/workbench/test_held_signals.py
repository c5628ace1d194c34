"""Signals to end wait for the end of a block, and come then as they would have come."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from impctl.service.output import held_signals
from tests.support.signals import interruptible


@pytest.mark.usefixtures("heard_signals")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_comes_after_the_block(number: signal.Signals) -> None:
    done: list[str] = []

    def commit() -> None:
        with held_signals():
            os.kill(os.getpid(), number)
            os.kill(os.getpid(), number)
            done.append("the commit")

    with interruptible():
        before = signal.getsignal(number)
        with pytest.raises(KeyboardInterrupt):
            commit()
        assert done == ["the commit"]
        assert signal.getsignal(number) is before


@pytest.mark.usefixtures("heard_signals")
def test_a_failure_of_the_block_is_not_lost() -> None:
    def commit() -> None:
        with held_signals():
            os.kill(os.getpid(), signal.SIGTERM)
            raise ValueError("disk full")

    with interruptible(), pytest.raises(KeyboardInterrupt) as caught:
        commit()
    assert str(caught.value.__context__) == "disk full"


def test_a_signal_that_is_switched_off_stays_off() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with held_signals():
            os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_other_threads_hold_nothing() -> None:
    result = []

    def work() -> None:
        with held_signals():
            result.append(signal.getsignal(signal.SIGINT))

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert result == [before]
