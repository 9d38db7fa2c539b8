"""The whole program over an engine that is fake, in processes that are ended from outside.

As a script it reads jobs from stdin, one JSON object a line, runs each and answers with one line. It forks for every
run, so that twenty killed runs cost one start of Python.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from refract.cli import main, scoring
from refract.report.html import to_html
from refract.testing import FakeEngine, Fault

COMMAND = (
    "score --model fake --prompts prompts.jsonl --corpus corpus.txt --chunks 6 --ctx 48 --n-predict 12 --progress plain"
    " --candidate ctk=q8_0,ctv=turbo3 --candidate ctk=q4_0,ctv=q4_0 --cache-dir cache --json-out report.json"
)
WORDS = "the slow river carried boats and cargo past seven quiet towns before winter closed the locks again "
PAUSE_S = 0.004  # of an answer, so that a kill may fall anywhere between two


def prepare(folder: Path) -> Path:
    """Writes the small inputs into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    prompts = [json.dumps({"prompt": f"Write a line about {topic}."}) for topic in WORDS.split()[:6]]
    (folder / "prompts.jsonl").write_text("\n".join(prompts) + "\n")
    (folder / "corpus.txt").write_text("".join(f"{n} {WORDS}{n * n}\n" for n in range(40)))
    return folder


def essence(text: str) -> dict[str, Any]:
    """Everything of a JSON report but when it was made and what it cost."""
    report: dict[str, Any] = json.loads(text)
    del report["created"]
    for cost in ("loads", "answers", "seconds"):
        del report["provenance"][cost]
    return report


class Pause(Fault):
    """A fault that only costs time."""

    def count(self) -> None:
        """Waits before every answer."""
        time.sleep(PAUSE_S)


def start(folder: Path, command: str = COMMAND, limits: Mapping[str, int] | None = None) -> int:
    """Starts the program in a process of its own, stdout and stderr in the file `said`; returns its id."""
    process = os.fork()
    if process:
        return process
    code = 70
    try:
        os.chdir(folder)
        said = os.open("said", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(said, 1)
        os.dup2(said, 2)
        for name, value in (limits or {}).items():
            import resource

            resource.setrlimit(getattr(resource, name), (value, resource.RLIM_INFINITY))
        code = main(command.split())
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:  # noqa: BLE001 - whatever it is, it belongs into the file
        traceback.print_exc()
    finally:
        os._exit(code)


def ended(process: int) -> int:
    """Waits for the process; its exit code, or minus the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def killed(folder: Path, after_s: float) -> dict[str, Any]:
    """A run killed after so many seconds, and the same command again."""
    process = start(prepare(folder))
    time.sleep(after_s)
    os.kill(process, signal.SIGKILL)
    first = ended(process)
    left = sorted(path.name for path in folder.iterdir())
    whole = not (folder / "report.json").exists() or bool(essence((folder / "report.json").read_text()))
    return {"first": first, "left": left, "whole": whole, "second": ended(start(folder)), "said": said(folder)}


def said(folder: Path) -> str:
    """What the last run printed."""
    return (folder / "said").read_text("utf-8", "replace")


def job(words: Mapping[str, Any]) -> dict[str, Any]:
    """One job's answer."""
    folder = Path(words["folder"])
    if words["what"] == "kill":
        return killed(folder, words["after_s"])
    if words["what"] == "time":
        started = time.monotonic()
        code = ended(start(prepare(folder)))
        return {"code": code, "seconds": time.monotonic() - started, "said": said(folder)}
    if words["what"] == "limit":
        code = ended(start(prepare(folder), limits={"RLIMIT_FSIZE": words["bytes"]}))
        first = said(folder)
        return {"code": code, "said": first, "second": ended(start(folder))}
    folders = [prepare(folder / name) for name in words["names"]]
    commands = [COMMAND.replace("--cache-dir cache", f"--cache-dir {folder / 'shared'}")] * len(folders)
    processes = [start(each, command) for each, command in zip(folders, commands, strict=True)]
    return {"codes": [ended(process) for process in processes], "said": [said(each) for each in folders]}


if __name__ == "__main__":
    to_html  # noqa: B018 - imported once for all
    scoring.load_engine = lambda *_: FakeEngine(fault=Pause(after=0))
    for line in sys.stdin:
        print(json.dumps(job(json.loads(line))), flush=True)
