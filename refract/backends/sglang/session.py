"""A server under one configuration, as a session."""

from __future__ import annotations

from dataclasses import replace

from refract.backends._asking import ListedSession
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
