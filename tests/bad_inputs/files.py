"""The bad files themselves: every one is something people really hand to such a program."""

from __future__ import annotations

import json
import os
import struct
from dataclasses import replace
from pathlib import Path

from refract.report import to_json
from tests.report.builder import report

GOOD_PROMPT = '{"prompt": "What is a lock on a canal?"}'
LLAMA_SERVER = """#!/bin/sh
case "$1" in
  --version) echo "version: 11434 (stub)" ;;
  --help) echo "--flash-attn --parallel --cache-type-k TYPE allowed values: f32, f16, q8_0, q4_0 (default: f16)" ;;
  *) exit 1 ;;
esac
"""


def write(folder: Path) -> None:
    """Writes all of them into `folder`."""
    for name, content in {**PROMPTS, **CORPORA, **reports(), **MODELS}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    links(folder)
    stub = folder / "bin" / "llama-server"
    stub.parent.mkdir()
    stub.write_text(LLAMA_SERVER)
    stub.chmod(0o755)


def links(folder: Path) -> None:
    """Symbolic links that lead nowhere or round in circles, a pipe nobody writes to, and empty folders."""
    for name in ("loop.jsonl", "loop.txt", "loop.json", "loop.gguf"):
        (folder / name).symlink_to(name)
    for name in ("dangling.jsonl", "dangling.txt", "dangling.json", "dangling.gguf"):
        (folder / name).symlink_to("nowhere")
    (folder / "empty-folder").mkdir()
    (folder / "model-empty").mkdir()


PROMPTS: dict[str, str | bytes] = {
    "p-empty.jsonl": "",
    "p-blank.jsonl": "\n \n\t\n",
    "p-array.jsonl": json.dumps([{"prompt": "a"}]),
    "p-text.jsonl": "What is a lock on a canal?\n",
    "p-number.jsonl": "7\n",
    "p-cut.jsonl": GOOD_PROMPT + "\n" + GOOD_PROMPT[:20],
    "p-two.jsonl": GOOD_PROMPT + GOOD_PROMPT,
    "p-nothing.jsonl": "{}\n",
    "p-both.jsonl": '{"prompt": "a", "messages": [{"role": "user", "content": "a"}]}\n',
    "p-typo.jsonl": '{"promt": "a"}\n',
    "p-null.jsonl": '{"prompt": null}\n',
    "p-list.jsonl": '{"prompt": ["a", "b"]}\n',
    "p-blank-prompt.jsonl": '{"prompt": "  "}\n',
    "p-role.jsonl": '{"messages": [{"role": "robot", "content": "a"}]}\n',
    "p-no-messages.jsonl": '{"messages": []}\n',
    "p-no-user.jsonl": '{"messages": [{"role": "system", "content": "Be brief."}]}\n',
    "p-message-key.jsonl": '{"messages": [{"role": "user", "content": "a", "name": "b"}]}\n',
    "p-same-id.jsonl": '{"id": "x", "prompt": "a"}\n{"id": "x", "prompt": "b"}\n',
    "p-twice.jsonl": '{"prompt": "a", "prompt": "b"}\n',
    "p-tier.jsonl": '{"prompt": "a", "tier": "huge"}\n',
    "p-surrogate.jsonl": '{"prompt": "a \\ud800 b"}\n',
    "p-latin1.jsonl": '{"prompt": "Gr\u00fc\u00dfe"}\n'.encode("latin-1"),
    "p-utf16.jsonl": GOOD_PROMPT.encode("utf-16"),
    "p-nul.jsonl": b'{"prompt": "a\0b"}\n',
    "p-deep.jsonl": '{"prompt": ' + "[" * 5000 + "]" * 5000 + "}\n",
    "p-digits.jsonl": '{"prompt": ' + "9" * 5000 + "}\n",
    "p-gzip.jsonl": b"\x1f\x8b\x08\0\0\0\0\0\0\3" + bytes(range(200)),
}
CORPORA: dict[str, str | bytes] = {
    "c-empty.txt": "",
    "c-ten.txt": "Ten bytes.",
    "c-short.txt": "The lock keeper writes a line. " * 4,
    "c-binary.txt": bytes(range(256)) * 8,
    "c-latin1.txt": ("Der Schleusenw\u00e4rter schreibt. " * 100).encode("latin-1"),
    "c-utf16.txt": ("The lock keeper writes. " * 100).encode("utf-16"),
    "c-spaces.txt": " \n" * 4000,
    "c-none/notes.md": "No text file here.",
    "c-one-empty/a.txt": "Some text. " * 200,
    "c-one-empty/b.txt": "",
}


def reports() -> dict[str, str | bytes]:
    """Files that are no report, or not any more."""
    small = report(prompts=2, n_predict=4, windows=2)
    whole = to_json(replace(small, candidates=small.candidates[:1], floor=None, control=None))
    parsed = json.loads(whole)

    def changed(**fields: object) -> str:
        return json.dumps({**parsed, **fields})

    return {
        "kept.json": whole,
        "r-empty.json": "",
        "r-cut.json": whole[: len(whole) // 2],
        "r-text.json": "no report",
        "r-array.json": "[]",
        "r-null.json": "null",
        "r-other.json": '{"schema": "someone.else/9"}',
        "r-newer.json": changed(schema="refract.report/2"),
        "r-no-schema.json": json.dumps({k: v for k, v in parsed.items() if k != "schema"}),
        "r-extra.json": changed(extra=1),
        "r-missing.json": json.dumps({k: v for k, v in parsed.items() if k != "model"}),
        "r-nan.json": whole.replace('"level": 0.95', '"level": NaN', 1),
        "r-huge.json": whole.replace('"level": 0.95', '"level": 1e999', 1),
        "r-twice.json": whole.replace('"schema"', '"schema": "x", "schema"', 1),
        "r-candidates.json": changed(candidates={}),
        "r-created.json": changed(created=7),
        "r-inside-out.json": whole.replace('"low":', '"was_low":', 1),
        "r-latin1.json": '{"schema": "\u00e9"}'.encode("latin-1"),
        "r-binary.json": bytes(range(256)),
        "r-deep.json": "[" * 100_000,
        "page.html": "<!doctype html><p>not this one",
    }


def _gguf(entries: int, tensors: int, rest: bytes = b"", version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, entries) + rest


def _entry(key: str, kind: int, value: bytes) -> bytes:
    name = key.encode()
    return struct.pack("<Q", len(name)) + name + struct.pack("<I", kind) + value


_LLAMA = _entry("general.architecture", 8, struct.pack("<Q", 5) + b"llama")
_LAYERS = _entry("llama.block_count", 4, struct.pack("<I", 2))
_CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "hidden_size": 64,
    "max_position_embeddings": 512,
}
MODELS: dict[str, str | bytes] = {
    "m-empty.gguf": b"",
    "m-text.gguf": "not a model, whatever it is called",
    "m-head.gguf": b"GGUF",
    "m-cut.gguf": _gguf(1, 0, _LLAMA[:30]),
    "m-version.gguf": _gguf(1, 0, _LLAMA, version=99),
    "m-big-endian.gguf": b"GGUF" + struct.pack(">IQQ", 3, 0, 1),
    "m-many.gguf": _gguf(2**62, 2**62),
    "m-nothing.gguf": _gguf(0, 0),
    "m-no-layers.gguf": _gguf(1, 0, _LLAMA),
    "m-no-layers-2.gguf": _gguf(2, 0, _LLAMA + _entry("llama.block_count", 4, struct.pack("<I", 0))),
    "m-no-context.gguf": _gguf(2, 0, _LLAMA + _LAYERS),
    "m-string.gguf": _gguf(2, 0, _LLAMA + _entry("llama.block_count", 8, struct.pack("<Q", 2**60))),
    "m-type.gguf": _gguf(1, 0, _entry("general.architecture", 77, b"")),
    "m-00001-of-00003.gguf": _gguf(2, 0, _LLAMA + _entry("split.count", 2, struct.pack("<H", 3))),
    "na\u00efve m\u00f6del \u6f22.gguf": "not a model either",
    "model-no-config/model.safetensors": b"",
    "model-bad-config/config.json": '{"model_type": ',
    "model-list-config/config.json": "[]",
    "model-no-weights/config.json": json.dumps(_CONFIG),
    "model-no-heads/config.json": json.dumps({**_CONFIG, "num_attention_heads": 0}),
    "model-no-heads/model.safetensors": b"",
    "model-no-layers/config.json": json.dumps({**_CONFIG, "num_hidden_layers": None}),
    "model-no-layers/model.safetensors": b"",
    "model-text-config/config.json": json.dumps({**_CONFIG, "text_config": None}),
    "model-text-config/model.safetensors": b"",
    "model-odd-config/config.json": json.dumps({**_CONFIG, "num_attention_heads": "two"}),
    "model-odd-quantization/config.json": json.dumps({**_CONFIG, "quantization": 4}),
    "model-odd-quantization/model.safetensors": b"",
    "model-odd-config/model.safetensors": b"",
    "model-latin1/config.json": '{"model_type": "\u00e9"}'.encode("latin-1"),
}


def unreadable(folder: Path, *names: str) -> None:
    """Takes the right to read the files from everybody."""
    for name in names:
        os.chmod(folder / name, 0)  # noqa: PTH101 - also of links' targets
