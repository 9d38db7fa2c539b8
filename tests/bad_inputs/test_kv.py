"""KV configurations that mean nothing, name nothing, or could not act."""

from __future__ import annotations

import pytest

from .conftest import Bad

KV = {
    "empty": ("", "the KV configuration is empty", "write ctk=q8_0,ctv=q8_0"),
    "a comma": (",", "empty item", "remove the extra comma"),
    "a key alone": ("ctk", "ctk has no value", "refract formats"),
    "no value": ("ctk=q8_0,ctv=", "ctv has no value", "refract formats"),
    "no key": ("=q8_0", "unknown key before =", "refract formats"),
    "keys only": ("ctk=q8_0", "ctv is missing", "add ctv=f16"),
    "values only": ("ctv=q8_0", "ctk is missing", "add ctk=f16"),
    "two commas": ("ctk=q8_0,,ctv=q4_0", "empty item", "remove the extra comma"),
    "a comma at the end": ("ctk=q8_0,ctv=q4_0,", "empty item", "remove the extra comma"),
    "bare": ("q8_0", "q8_0 says no side", "write ctk=q8_0,ctv=q8_0"),
    "a key twice": ("ctk=q8_0,ctk=q4_0,ctv=f16", "ctk is given twice", "keep one"),
    "mistyped key": ("ctk=q8_0,cvt=q4_0", "unknown key cvt", "did you mean ctv?"),
    "semicolon": ("ctk=q8_0;ctv=q4_0", "unexpected ';'", "write ctk="),
    "colons": ("ctk:q8_0,ctv:q4_0", "ctk:q8_0 is neither key=value nor an alias", "did you mean"),
    "space for a comma": ("ctk=q8_0 ctv=q4_0", "unexpected ' '", "write ctk="),
    "newline": ("ctk=q8_0\nctv=q4_0", r"unexpected '\n'", "write ctk="),
    "unknown turbo": ("ctk=turbo5x,ctv=f16", "unknown format turbo5x", "did you mean turbo5?"),
    "no such bits": ("ctk=q7_0,ctv=f16", "unknown format q7_0", "did you mean q8_0?"),
    "group size": ("ctk=affine4:g=33,ctv=f16", "ctk=affine4:g=33 is not possible: expected", "refract formats"),
    "empty group size": ("ctk=affine4:g=,ctv=f16", "ctk=affine4:g= is not possible: expected", "refract formats"),
    "unknown option": ("ctk=affine4:h=64,ctv=f16", "has no option h: expected g", "refract formats"),
    "option twice": ("ctk=affine4:g=64:g=32,ctv=f16", "the option g twice", "keep one"),
    "option's value": ("ctk=turbo3:prod=maybe,ctv=f16", "prod=maybe is not possible", "refract formats"),
    "rotation": ("ctk=q8_0,ctv=q4_0,rot=maybe", "rot=maybe is not possible: expected auto", "refract formats"),
    "negative boundary": ("ctk=q8_0,ctv=q4_0,boundary=-1", "boundary=-1 is not possible", "refract formats"),
    "backward layers": ("ctk=q8_0,ctv=q4_0,layers=3-1", "layers=3-1 is not possible", "refract formats"),
    "no layers": ("ctk=q8_0,ctv=q4_0,layers=", "layers has no value", "refract formats"),
    "seed": ("ctk=q8_0,ctv=q4_0,seed=x", "seed=x is not possible", "refract formats"),
    "long seed": ("ctk=q8_0,ctv=q4_0,seed=" + "9" * 40, "is not possible", "refract formats"),
    "cannot act": ("ctk=f16,ctv=f16,boundary=2", "boundary=2 cannot act", "leave boundary out"),
    "accent": ("ctk=é8_0,ctv=f16", r"unexpected '\xe9'", "write ctk="),
    "escape": ("ctk=q8_0\x1b[31m,ctv=f16", r"unexpected '\x1b'", "write ctk="),
    "right to left": ("\u202ectk=q8_0,ctv=f16", r"unexpected '\u202e'", "write ctk="),
    "lone surrogate": ("ctk=\udcff,ctv=f16", r"unexpected '\udcff'", "write ctk="),
    "NUL": ("ctk=q8_0,ctv=\0", r"unexpected '\x00'", "write ctk="),
    "a long word": ("x" * 100_000, "more characters not shown", "refract formats"),
    "a long format": ("ctk=" + "q" * 100_000 + ",ctv=f16", "unknown format qqq", "refract formats"),
    "many items": ("ctk=q8_0,ctv=f16" + ",rot=none" * 10_000, "rot is given twice", "keep one"),
}


@pytest.mark.parametrize("option", ["--candidate", "--reference"])
@pytest.mark.parametrize(("text", "line", "hint"), KV.values(), ids=KV)
def test_refused(bad: Bad, option: str, text: str, line: str, hint: str) -> None:
    words = ["--candidate=ctk=q8_0,ctv=f16"] if option == "--reference" else []
    ran = bad.refuses("score", "--model", "fake", *words, f"{option}={text}", code=2, line=line, hint=hint)
    assert f"{option}: " in ran.err
