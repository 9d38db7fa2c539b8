"""The options of the SGLang backend; whatever else is given is an argument of SGLang itself."""

from __future__ import annotations

from collections.abc import Mapping

from refract.backends._options import refuse_no_number, refuse_unknown
from refract.backends._servers import Places
from refract.errors import UsageError

OPTIONS: Mapping[str, str] = {
    "url": "",
    "reference_url": "",
    "candidate_url": "",
    "reference_kv": "",
    "candidate_kv": "",
    "launch": "",
    "python": "",  # the interpreter of SGLang's own environment; this one without it
    "parallel": "1",
    "top_k": "1000",  # tokens listed for a divergence
    "timeout_s": "600",  # for one answer
    "patience_s": "30",  # for a server that is not there, or busy
    "ready_s": "900",  # for a server to load its model
}
FREE = frozenset({"timeout_s", "patience_s", "ready_s", "launch"})  # options that change no answer
_NUMBERS = ("parallel", "top_k", "timeout_s", "patience_s", "ready_s")
_MOST = 1 << 20
ON = ("1", "true", "yes", "on")


def arguments_of(options: Mapping[str, str]) -> dict[str, str]:
    """The options that are SGLang's own arguments."""
    return {name: value for name, value in options.items() if name not in OPTIONS}


def check_options(options: Mapping[str, str], places: Places | None) -> None:
    """Raises: UsageError for an option it cannot take, and for no server, or for one that runs and one to start."""
    launch = options.get("launch", "").lower() in ON
    if places is not None and launch:
        raise UsageError("--launch starts servers, and an address of one is given too", hint="leave one of them out")
    if places is None and not launch:
        raise UsageError(
            "the sglang backend asks servers, and no address of one is given",
            hint="give --url, or --reference-url and --candidate-url, or --launch to have them started here",
        )
    if places is not None:
        refuse_unknown("sglang", options, list(OPTIONS))  # a running server takes no arguments
    for name in _NUMBERS:
        if value := options.get(name, ""):
            refuse_no_number(name, value, most=_MOST, default=OPTIONS[name])
