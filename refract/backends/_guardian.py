"""Runs a command and takes it along when the parent goes: `python _guardian.py COMMAND …`, with the parent on stdin.

The end of standard input is the parent's death, however it came about (kill -9 too), on every POSIX system. It and the
command are a process group of their own, which is then killed whole. Not to be imported: it stands outside the package
so that it starts in a few milliseconds.
"""

import os
import signal
import subprocess
import sys
import threading


def main() -> None:
    """Exits as the command does: with its status, or with 128 and the number of the signal that ended it.

    126 where the command cannot be run at all, as in a shell.
    """
    try:
        child = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
    except OSError as error:
        sys.stderr.write(f"{sys.argv[1]}: {error.strerror}\n")
        sys.stderr.flush()
        os._exit(126)

    def watch() -> None:
        while os.read(0, 4096):
            pass
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()
    status = child.wait()
    os._exit(128 - status if status < 0 else status)


main()
