"""Child processes end with their block and with their parent, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from refract.backends._process import child, described
from refract.errors import SetupError

SLEEP = "import os, sys, time; print(os.getpid(), flush=True); time.sleep(600)"


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat")
    return not state.exists() or state.read_text().rpartition(")")[2].split()[0] != "Z"


def until(condition: object, timeout_s: float = 10.0) -> bool:
    assert callable(condition)
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return False


def test_the_log_holds_both_streams_and_the_status_is_the_commands() -> None:
    code = "import sys; print('out', flush=True); print('err', file=sys.stderr); sys.exit(3)"
    with child([sys.executable, "-c", code]) as process:
        assert process.wait(10.0) == 3
        assert process.log == "out\nerr\n"
        assert process.last_words == "err"
        assert described(process.status) == "exit status 3"


def test_a_signal_is_told_from_an_exit() -> None:
    with child([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"]) as process:
        assert described(process.wait(10.0)) == "ended by SIGKILL"


def test_it_ends_with_the_block_also_when_that_raises() -> None:
    def fail() -> None:
        with child([sys.executable, "-c", SLEEP]) as process:
            assert until(lambda: process.log)
            pids.append(int(process.log))
            raise ValueError("inside")

    pids: list[int] = []
    with pytest.raises(ValueError, match="inside"):
        fail()
    assert until(lambda: not alive(pids[0]))


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_it_ends_with_the_parent_however_that_ends(sign: signal.Signals) -> None:
    code = (
        "import signal, sys, time\nfrom refract.backends._process import child\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a background job inherits it ignored
        f"with child([sys.executable, '-c', {SLEEP!r}]) as c:\n"
        "    while not c.log: time.sleep(0.02)\n"
        "    print(c.log, flush=True)\n"
        "    time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert alive(pid)
        parent.send_signal(sign)
        parent.wait(10.0)
    assert until(lambda: not alive(pid))


def test_what_cannot_be_run_is_said(tmp_path: Path) -> None:
    plain = tmp_path / "tool"
    plain.write_text("x")
    with pytest.raises(SetupError, match="may not be executed"), child([str(plain)]):
        pass
    plain.chmod(0o755)
    plain.write_bytes(b"\x7fELF of no kind")
    with child([str(plain)]) as process:
        assert process.wait(10.0) == 126
        assert "format error" in process.log
    with pytest.raises(SetupError, match="does not exist"), child([str(tmp_path / "none")]):
        pass
