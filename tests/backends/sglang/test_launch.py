"""Servers of our own: started for one configuration after the other, and gone whatever happens."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from refract.backends.sglang.engine import SGLangEngine
from refract.backends.sglang.launch import why_not_ready
from refract.engine import Capability, LoadSpec
from refract.errors import ConfigMismatchError, EngineError, IncompleteError, ModelError, RefractError, UsageError
from refract.kv import parse_kv
from refract.run.blobs import BlobFolder
from refract.work import Generate, Generation
from tests.backends.sglang.support import write_model
from tests.backends.sglang.test_arguments import argument

ROOT = Path(__file__).parents[3]
KNOWN = {
    "page_size": argument("--page-size", number="int"),
    "attention_backend": argument("--attention-backend"),
    "dtype": argument("--dtype", choices=("auto", "float32")),
    "kv_cache_dtype": argument("--kv-cache-dtype", choices=("auto", "fp8_e4m3")),
    "disable_radix_cache": argument("--disable-radix-cache", kind="flag"),
    "chunked_prefill_size": argument("--chunked-prefill-size", number="int"),
}
# What stands in for the interpreter of SGLang's environment. Its server has a child of its own, as SGLang's has.
PYTHON = f"""#!{sys.executable}
import json, os, subprocess, sys, time
sys.path.insert(0, {str(ROOT)!r})
if sys.argv[1] == "-c":
    print("0.5.15 2.9")
elif sys.argv[1].endswith("inside.py"):
    print(json.dumps({{"version": "0.5.15", "device": "cpu", "arguments": {json.dumps(KNOWN)}}}))
else:
    given = dict(word.split("=", 1) if "=" in word else (word, "") for word in sys.argv[3:])
    value = lambda flag: sys.argv[sys.argv.index(flag) + 1]
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    with open(os.environ["STARTED"], "a") as started:
        started.write(json.dumps({{"pids": [os.getpid(), child.pid], "words": sys.argv[3:]}}) + "\\n")
    how = os.environ.get("FAULT", "")
    if how == "fails":
        print("INFO: loading")
        sys.exit("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB")
    if how == "hangs":
        time.sleep(600)
    from tests.backends.fake_http import serving
    from tests.backends.sglang.support import FakeSGLang
    kv_type = "auto" if how == "other type" else value("--kv-cache-dtype")
    attention = "triton" if how == "other attention" else given["--attention-backend"]
    chunk = int(given.get("--chunked-prefill-size", 2048))
    extra = {{"chunked_prefill_size": chunk}}
    fake = FakeSGLang(model=value("--model-path"), kv_type=kv_type, attention=attention, extra=extra)
    with serving(fake.answer, port=int(value("--port"))):
        print("The server is fired up and ready to roll!", flush=True)
        time.sleep(600)
"""


@pytest.fixture
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "bin" / "python"
    file.parent.mkdir()
    file.write_text(PYTHON)
    file.chmod(0o755)
    monkeypatch.setenv("STARTED", str(tmp_path / "started"))
    return file


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model")


def engine(tmp_path: Path, **options: str) -> SGLangEngine:
    return SGLangEngine({"launch": "1", "python": str(tmp_path / "bin" / "python"), **options}, tmp_path / "cache")


def started(tmp_path: Path) -> list[dict[str, list[str]]]:
    return [json.loads(line) for line in (tmp_path / "started").read_text().splitlines()]


def alive(pid: int) -> bool:
    """Whether the process runs; one that has ended and was not waited for yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def none_left(tmp_path: Path) -> bool:
    """Whether all that was started is gone, within a few seconds."""
    pids = [int(pid) for entry in started(tmp_path) for pid in entry["pids"]]
    until = time.monotonic() + 10.0
    while any(map(alive, pids)) and time.monotonic() < until:
        time.sleep(0.02)
    return bool(pids) and not any(map(alive, pids))


def spec(model: Path, kv: str = "ctk=fp8_e4m3,ctv=fp8_e4m3") -> LoadSpec:
    return LoadSpec(model=str(model), kv=parse_kv(kv), max_tokens=64)


def refused(own: SGLangEngine, model: Path, tmp_path: Path) -> RefractError:
    with pytest.raises(RefractError) as caught, own.load(spec(model), BlobFolder(tmp_path / "blobs")):
        pass
    return caught.value


@pytest.mark.usefixtures("python")
class TestLaunch:
    def test_a_server_is_started_for_its_configuration_and_ended(self, model: Path, tmp_path: Path) -> None:
        own = engine(tmp_path, dtype="auto")
        request = Generate(prompt=(1, 2, 3), max_new_tokens=4)
        with own.load(spec(model), BlobFolder(tmp_path / "blobs")) as session:
            assert session.effective_kv.k == "fp8_e4m3"
            (found,) = [answer for _, answer in session.run([request])]
        assert isinstance(found, Generation)
        assert none_left(tmp_path)
        words = started(tmp_path)[0]["words"]
        assert words[words.index("--kv-cache-dtype") + 1] == "fp8_e4m3"
        assert words[words.index("--model-path") + 1] == str(model)
        assert int(words[words.index("--port") + 1]) <= 55535  # it takes one 10,000 above as well
        assert [word for word in words if word.startswith("--dtype")] == ["--dtype=auto"]  # the user's over ours
        assert "--page-size=1" in words
        assert "fired up" in (tmp_path / "cache" / "logs" / "sglang-fp8_e4m3.log").read_text()

    def test_a_server_that_fails_says_why_and_leaves_nothing(
        self, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("FAULT", "fails")
        error = refused(engine(tmp_path), model, tmp_path)
        assert "CUDA out of memory" in error.message
        assert "mem_fraction_static" in str(error.hint)
        assert none_left(tmp_path)
        assert "out of memory" in (tmp_path / "cache" / "logs" / "sglang-fp8_e4m3.log").read_text()

    def test_a_server_that_never_comes_up_has_a_deadline(
        self, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("FAULT", "hangs")
        error = refused(engine(tmp_path, ready_s="3"), model, tmp_path)
        assert "not ready within 3 s" in error.message
        assert none_left(tmp_path)

    def test_a_server_that_keeps_another_type_is_refused(
        self, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("FAULT", "other type")
        assert isinstance(refused(engine(tmp_path), model, tmp_path), ConfigMismatchError)
        assert none_left(tmp_path)

    def test_a_server_that_would_be_blind_is_refused(
        self, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("FAULT", "other attention")
        error = refused(engine(tmp_path), model, tmp_path)
        assert isinstance(error, ConfigMismatchError)
        assert "attention is triton" in error.message
        assert none_left(tmp_path)

    def test_an_interruption_leaves_nothing(self, model: Path, tmp_path: Path) -> None:
        with pytest.raises(KeyboardInterrupt), engine(tmp_path).load(spec(model), BlobFolder(tmp_path / "blobs")):
            raise KeyboardInterrupt
        assert none_left(tmp_path)

    @pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
    def test_nothing_outlives_the_program(self, number: signal.Signals, model: Path, tmp_path: Path) -> None:
        code = (
            "import sys, time; from pathlib import Path; from refract.backends.sglang.engine import SGLangEngine\n"
            "from tests.backends.sglang.test_launch import engine, spec; from refract.run.blobs import BlobFolder\n"
            f"folder = Path({str(tmp_path)!r})\n"
            f"with engine(folder).load(spec(Path({str(model)!r})), BlobFolder(folder / 'blobs')):\n"
            "    print('ready', flush=True); time.sleep(600)\n"
        )
        program = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        program.send_signal(number)
        program.wait()
        program.stdout.close()
        assert none_left(tmp_path)

    def test_a_control_is_started_otherwise_and_refuses_no_candidate(self, model: Path, tmp_path: Path) -> None:
        own, blobs = engine(tmp_path), BlobFolder(tmp_path / "blobs")
        plain = spec(model, "ctk=f16,ctv=f16")
        changed = replace(plain, options=dict(own.control_options({}, plain.kv) or {}))
        for each in (plain, changed, spec(model)):
            with own.load(each, blobs) as session:
                assert session.effective_kv.layers == 2
        words = [entry["words"] for entry in started(tmp_path)]
        assert ["--chunked-prefill-size=64" in entry for entry in words] == [False, True, False]

    def test_arguments_are_checked_before_anything_is_started(self, model: Path, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="no argument 'atention_backend'"):
            engine(tmp_path, atention_backend="triton").check_kv(str(model), parse_kv("ctk=f16,ctv=f16"))
        assert not (tmp_path / "started").exists()

    def test_the_identity_holds_the_arguments_and_no_place(self, model: Path, tmp_path: Path) -> None:
        own, other = engine(tmp_path), engine(tmp_path, dtype="auto")
        assert own.identify(spec(model)).digest != other.identify(spec(model)).digest
        assert own.identify(spec(model)).build == "0.5.15"
        assert str(tmp_path) not in json.dumps(dict(own.identify(spec(model)).options))

    def test_what_is_read_follows_from_the_arguments(self, tmp_path: Path) -> None:
        kv = parse_kv("ctk=f16,ctv=f16")
        assert Capability.KL_PREFILL in engine(tmp_path).capabilities(kv)
        assert Capability.KL_PREFILL not in engine(tmp_path, attention_backend="triton").capabilities(kv)
        for lacking in ({"disable_radix_cache": "true"}, {"page_size": "64"}):
            assert Capability.KL_DECODE not in engine(tmp_path, **lacking).capabilities(kv)

    def test_the_control_reads_prompts_in_other_chunks(self, tmp_path: Path) -> None:
        own, kv = engine(tmp_path), parse_kv("ctk=f16,ctv=f16")
        assert own.control_options({}, kv) == {"chunked_prefill_size": "64"}
        assert own.control_options({"chunked_prefill_size": "64"}, kv) == {"chunked_prefill_size": "128"}


@pytest.mark.parametrize(
    ("log", "status", "kind", "words"),
    [
        ("RuntimeError: Not enough memory. Please try to increase", 1, EngineError, "Not enough memory"),
        ("RuntimeError: operator torchvision::nms does not exist", 1, EngineError, "torchvision"),
        ("launch_server.py: error: argument --kv-cache-dtype: invalid choice", 2, EngineError, "invalid choice"),
        ("OSError: /x does not appear to have a file named config.json", 1, ModelError, "config.json"),
        ("ValueError: first\nINFO: fine\nValueError: second", 1, EngineError, "second"),
        ("", 137, IncompleteError, "SIGKILL"),
        ("", 1, EngineError, "nothing was printed"),
    ],
)
def test_why_a_server_did_not_start(log: str, status: int, kind: type[RefractError], words: str) -> None:
    error = why_not_ready(log, status)
    assert type(error) is kind
    assert words in error.message
    assert error.hint


@pytest.fixture(autouse=True)
def _clean_up(tmp_path: Path) -> Iterator[None]:
    """A failed test leaves no process behind."""
    yield
    if (tmp_path / "started").exists():
        for pid in (int(pid) for entry in started(tmp_path) for pid in entry["pids"]):
            if alive(pid):
                os.kill(pid, signal.SIGKILL)
