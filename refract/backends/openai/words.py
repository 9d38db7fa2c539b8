"""What a report says of a server, and what it lacks."""

from __future__ import annotations

from refract.backends.openai.offers import Offer


def notes(offer: Offer, *, parallel: int) -> tuple[str, ...]:
    """What stands beside a KV configuration that this server answered for."""
    found = [f"{offer.title}, model {short_name(offer.model)}", offer.dialect.cache_rule, *what_it_lacks(offer)]
    if not offer.tokenizer_compared:
        found.append("the server's tokenizer could not be compared with the model's own")
    if parallel > 1:
        found.append(f"{parallel} requests at once: answers may depend on their neighbours")
    return tuple(found)


def what_it_lacks(offer: Offer) -> tuple[str, ...]:
    """What the server does not offer, and what that costs."""
    if not offer.ids:
        return ("it gives no token ids: its text is tokenised here, and no divergence is measured",)
    if not offer.listed:
        return ("it lists no probable tokens by id: no margins, no divergence",)
    if not offer.raw:
        return ("logit_bias changes what it lists: tokens cannot be forced, no divergence",)
    return ()


def short_name(model: str) -> str:
    """The served model's name without the folders of its machine."""
    return model.rstrip("/").rpartition("/")[2] if model.startswith(("/", "~", ".")) else model
