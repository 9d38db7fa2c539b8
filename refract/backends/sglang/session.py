"""A server under one configuration, as a session."""

from __future__ import annotations

from dataclasses import replace

from refract.backends._asking import ListedSession
from refract.backends._sanity import refuse_garbage, sanity_window
from refract.backends._tokenizer import HFTokenizer
from refract.backends.sglang.asking import SGLangAsker
from refract.backends.sglang.facts import ServerFacts
from refract.kv import KVConfig
from refract.work import Generate, Generation


class SGLangSession(ListedSession):
    """Fulfils `refract.engine.Session`.

    A base that is kept of a generation is read step by step along its tokens, as the candidate will be: the kernels
    that decode round otherwise than those that read a prompt, and their difference is not the cache's.
    """

    def _generate(self, request: Generate) -> Generation:
        found = super()._generate(replace(request, keep_base=False))
        if not request.keep_base or not found.tokens:
            return found
        return replace(found, base=self._keep(self._asker.force(request.prompt, found.tokens, self._count)))


def check_sanity(asker: SGLangAsker, tokenizer: HFTokenizer, facts: ServerFacts, kv: KVConfig) -> None:
    """Nothing where the server scores no given tokens, which `notes` says.

    Raises: EngineError where the server does not compute the model under this KV type.
    """
    text = sanity_window(tokenizer)
    if facts.prefill_reads_cache:
        found = asker.read(text.tokens, text.start, 1)
    elif facts.steps:
        found = asker.force(text.tokens[: text.start], text.tokens[text.start :], 1)
    else:
        return
    refuse_garbage(found.logprobs, tokenizer.vocab_size, f"SGLang {facts.version}", str(kv))


def notes(facts: ServerFacts, lanes: int) -> list[str]:
    """What stands in a report beside the KV configuration."""
    found = [f"SGLang's {facts.attention} attention on {facts.device}, {facts.dtype}"]
    if not (facts.prefill_reads_cache or facts.steps):
        found.append("this server scores no given tokens: whether it computes the model is not checked")
    if lanes > 1:
        found.append(f"{lanes} requests are in flight at once: answers depend on their neighbours")
    if speculative := facts.arguments.get("speculative_algorithm"):
        found.append(f"the server decodes speculatively ({speculative})")
    return found
