"""Chat templates: the text a model's own Jinja template makes of a conversation, as Hugging Face renders it.

Reference: `transformers/utils/chat_template_utils.py`, `_compile_jinja_template` and `render_jinja_template`, version
5.24. The one difference is `strftime_now`, which would make runs of different days incomparable.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Never

from jinja2 import Template, TemplateError, TemplateSyntaxError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from refract.errors import ModelError, UsageError
from refract.work import Message

# What `strftime_now` formats in every run. Llama 3 and others print today's date into the system turn, and a prompt
# that changes at midnight would neither resume nor compare.
FIXED_NOW = datetime(2025, 1, 1, 12, 0, 0)

# Tokens that end an assistant's turn in the templates of the models named; from the end-of-generation list of
# src/llama-vocab.cpp, llama.cpp b11434.
TURN_ENDS: tuple[str, ...] = (
    "<|im_end|>",  # ChatML: Qwen, SmolLM, Yi
    "<|eot_id|>",  # Llama 3
    "<|eom_id|>",  # Llama 3.1, a turn that calls a tool
    "<|eot|>",  # Llama 4
    "<end_of_turn>",  # Gemma 2, 3
    "<turn|>",  # Gemma 4
    "<|end|>",  # Phi 3, 4
    "<|return|>",  # gpt-oss
    "<|call|>",  # gpt-oss, a turn that calls a tool
    "<|endoftext|>",  # GPT-2, Qwen, GLM
    "<|end_of_text|>",  # Granite
    "<|END_OF_TURN_TOKEN|>",  # Command R
    "<end_of_utterance>",  # SmolVLM
    "<｜end▁of▁sentence｜>",  # DeepSeek
    "[EOT]",  # Kimi K2
    "[e~[",  # MiniMax M2
    "</s>",  # Mistral, Llama 2
)

# A template runs arbitrary expressions; these are what Python raises for wrong ones.
_EXPRESSION_ERRORS = (
    TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """A chat template that parses, with the texts it may write for begin and end of sequence ("" for none).

    Raises: ModelError when `source` is not a template.
    """

    source: str
    bos: str = ""
    eos: str = ""
    _compiled: Template = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_compiled", _compile(self.source))

    def render(self, messages: Sequence[Message]) -> str:
        """The text of the conversation up to and including the opening of the assistant's turn.

        `enable_thinking` is left undefined, so a template that knows it takes its own default.

        Raises: UsageError when the template itself refuses the messages (no system role, two user turns in a row);
        ModelError when it fails.
        """
        try:
            return self._compiled.render(
                messages=[{"role": message.role, "content": message.content} for message in messages],
                tools=None,
                documents=None,
                add_generation_prompt=True,
                bos_token=self.bos,
                eos_token=self.eos,
            )
        except TemplateRefusalError as refusal:
            raise _refused(refusal, messages) from None
        except _EXPRESSION_ERRORS as error:
            raise _failed(error) from None

    def turn_ends(self) -> tuple[str, ...]:
        """The well-known end-of-turn tokens whose text the template contains.

        `<|end|>` does not count beside `<|return|>`: there it closes one channel of a turn that goes on (gpt-oss).
        """
        found = tuple(token for token in TURN_ENDS if token in self.source)
        return tuple(token for token in found if token != "<|end|>") if "<|return|>" in found else found


class TemplateRefusalError(TemplateError):
    """What a template raises through `raise_exception`."""


def pick_template(value: object) -> str | None:
    """The template's source in a `chat_template` entry: a text, or the one named "default" in a list of named ones.

    None when there is none, or none of that name (Hugging Face refuses to guess there as well).

    Raises: ModelError when the entry has neither form.
    """
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, list):
        message = f"the model's chat template is a {type(value).__name__}, neither text nor a list of templates"
        raise ModelError(message, hint="download the model again")
    named: dict[object, object] = {
        entry["name"]: entry["template"]
        for entry in value
        if isinstance(entry, Mapping) and "name" in entry and "template" in entry
    }
    chosen = named.get("default")
    if chosen is not None and not isinstance(chosen, str):
        message = f"the model's default chat template is a {type(chosen).__name__} instead of text"
        raise ModelError(message, hint="download the model again")
    return chosen


def join_contents(messages: Iterable[Message]) -> str:
    """What a model without a template is given: the contents, joined by blank lines."""
    return "\n\n".join(message.content for message in messages)


class _Generation(Extension):
    """`{% generation %}…{% endgeneration %}`, which marks the assistant's text for training and prints it unchanged."""

    tags = {"generation"}  # noqa: RUF012 -- the attribute jinja2 looks for

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _compile(source: str) -> Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = FIXED_NOW.strftime
    try:
        return environment.from_string(source)
    except TemplateSyntaxError as error:
        raise ModelError(
            f"the model's chat template does not parse: line {error.lineno}: {error.message}",
            hint="download the model's tokenizer files again",
        ) from None
    # Python's own compiler refuses what jinja2 made of it: a `break` outside a loop, hundreds of brackets.
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ModelError(
            f"the model's chat template does not parse: {error}", hint="download the model's tokenizer files again"
        ) from None


def _raise_exception(message: object) -> Never:
    raise TemplateRefusalError(str(message))


def _tojson(
    value: Any,  # whatever the template computed
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without jinja2's HTML escapes, which no model was trained on."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refused(refusal: TemplateRefusalError, messages: Sequence[Message]) -> UsageError:
    roles = " ".join(message.role for message in messages)
    hint = "leave the system message out" if any(m.role == "system" for m in messages) else "change the order of roles"
    return UsageError(f"the model's chat template refuses the roles {roles}: {refusal.message}", hint=hint)


def _failed(error: Exception) -> ModelError:
    return ModelError(
        f"the model's chat template fails: {type(error).__name__}: {error}",
        hint="download the model's tokenizer files again",
    )
