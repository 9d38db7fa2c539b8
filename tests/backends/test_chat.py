"""Chat templates: rendered as Hugging Face renders them, refusals and faults told apart."""

from __future__ import annotations

import pytest

from refract.backends._chat import ChatTemplate, join_contents, pick_template
from refract.errors import ModelError, UsageError
from refract.work import Message

CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + "
    "'\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
# The rules of Gemma's template: no system role, user and assistant in turn.
STRICT = """{{ bos_token }}
{%- if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif -%}
{% for message in messages %}
    {%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Conversation roles must alternate') }}
    {%- endif %}
    {{- '<start_of_turn>' + message.role + '\n' + message.content | trim + '<end_of_turn>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"""


def user(content: str) -> Message:
    return Message(role="user", content=content)


def system(content: str) -> Message:
    return Message(role="system", content=content)


def test_turns_are_formatted_and_the_assistants_turn_is_opened() -> None:
    text = ChatTemplate(CHATML).render([system("Be brief."), user("Hi")])
    assert text == ("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")


def test_content_is_never_read_as_a_template_or_escaped() -> None:
    text = ChatTemplate(CHATML).render([user("{{ 7*7 }} <b>&amp;</b> {% raw %}")])
    assert "{{ 7*7 }} <b>&amp;</b> {% raw %}" in text


def test_block_lines_leave_no_white_space() -> None:
    source = "{% for m in messages %}\n  {% if true %}\n{{ m.content }}\n  {% endif %}\n{% endfor %}\n"
    assert ChatTemplate(source).render([user("a"), user("b")]) == "a\nb\n"


def test_begin_and_end_of_sequence_are_variables() -> None:
    source = "{{ bos_token }}{{ messages[0].content + eos_token }}"
    assert ChatTemplate(source, "<s>", "</s>").render([user("x")]) == "<s>x</s>"
    assert ChatTemplate(source).render([user("x")]) == "x"


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("{% generation %}kept{% endgeneration %}", "kept"),
        ("{{ strftime_now('%d %b %Y') }}", "01 Jan 2025"),
        ("{{ {'b': '<é>', 'a': 1} | tojson }}", '{"b": "<é>", "a": 1}'),
        ("{{ [1] | tojson(indent=2) }}", "[\n  1\n]"),
        ("{{ enable_thinking is defined }} {{ tools is none }} {{ documents is none }}", "False True True"),
        ("{{ messages[0]['content'].split(' ')[-1].strip() }}", "there"),
        ("{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = 5 %}{% endfor %}{{ ns.n }}", "5"),
    ],
)
def test_what_templates_rely_on(source: str, text: str) -> None:
    assert ChatTemplate(source).render([user("hello there")]) == text


def test_rendering_agrees_with_hugging_face() -> None:
    reference = pytest.importorskip("transformers.utils.chat_template_utils", reason="transformers is not installed")
    conversation = [{"role": "user", "content": "a\n"}, {"role": "assistant", "content": " b"}]
    messages = [Message(**turn) for turn in conversation]
    for source in (CHATML, STRICT):
        (text,), _ = reference.render_jinja_template(
            conversations=[conversation], chat_template=source, add_generation_prompt=True, bos_token="<s>"
        )
        assert ChatTemplate(source, "<s>").render(messages) == text


@pytest.mark.parametrize(
    ("messages", "reason", "hint"),
    [
        ([system("Be brief."), user("Hi")], "System role not supported", "system message"),
        ([user("a"), user("b")], "roles must alternate", "order of roles"),
    ],
)
def test_refusals_name_the_roles_and_the_templates_reason(messages: list[Message], reason: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        ChatTemplate(STRICT).render(messages)
    assert reason in caught.value.message
    assert messages[0].role in caught.value.message
    assert hint in str(caught.value.hint)
    ChatTemplate(STRICT).render([user("only what it allows")])


@pytest.mark.parametrize(
    "source",
    ["{% for %}", "{{ unclosed", "{% if a %}", "{% nonsense %}", "{{ 1 | nofilter }}", "{% break %}", "{{" + "(" * 999],
)
def test_a_template_that_does_not_parse_is_the_models_fault(source: str) -> None:
    with pytest.raises(ModelError, match="does not parse"):
        ChatTemplate(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ missing.attribute }}",
        "{{ 'a' + 1 }}",
        "{{ 1 / 0 }}",
        "{{ messages[5].content.upper() }}",
        "{{ messages[0].content | int('x', 99) + [] }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ range(9999999) | list }}",
    ],
)
def test_a_template_that_fails_or_breaks_out_is_the_models_fault(source: str) -> None:
    with pytest.raises(ModelError, match="template fails"):
        ChatTemplate(source).render([user("x")])


def test_templates_are_values() -> None:
    assert ChatTemplate(CHATML, "<s>") == ChatTemplate(CHATML, "<s>")
    assert ChatTemplate(CHATML) != ChatTemplate(CHATML, "<s>")
    assert len({ChatTemplate(CHATML), ChatTemplate(CHATML)}) == 1


def test_one_of_several_templates_is_picked_by_name() -> None:
    named = [{"name": "rag", "template": "r"}, {"name": "default", "template": "d"}]
    assert pick_template(named) == "d"
    assert pick_template("x") == "x"
    assert pick_template(None) is None
    assert pick_template([{"name": "rag", "template": "r"}]) is None
    assert pick_template([1, {"name": "default"}]) is None


@pytest.mark.parametrize("value", [7, {"default": "x"}, [{"name": "default", "template": 7}]])
def test_entries_that_are_no_templates_are_refused(value: object) -> None:
    with pytest.raises(ModelError):
        pick_template(value)


def test_turn_ends_are_those_the_template_writes() -> None:
    assert ChatTemplate(CHATML).turn_ends() == ("<|im_end|>",)
    assert ChatTemplate(STRICT).turn_ends() == ("<end_of_turn>",)
    assert ChatTemplate("{{ '<|end|>' }}").turn_ends() == ("<|end|>",)
    assert set(ChatTemplate("{{ '<|end|><|return|><|call|>' }}").turn_ends()) == {"<|return|>", "<|call|>"}
    assert ChatTemplate("no such token").turn_ends() == ()


def test_without_a_template_contents_are_joined_by_blank_lines() -> None:
    assert join_contents([system("a"), user("b ")]) == "a\n\nb "
    assert join_contents([]) == ""
