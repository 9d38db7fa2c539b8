"""A small mlx-lm model with random weights: enough layers and heads to see a cache work, and quick."""

from __future__ import annotations

from typing import Any

VOCABULARY = 97


def tiny_llama(*, layers: int = 3, window: int | None = None, bias: bool = False, head_dim: int = 64) -> Any:
    """A Llama of two KV heads; with `window` every other layer attends to so many tokens only."""
    import mlx.core as mx
    from mlx_lm.models.llama import Model, ModelArgs

    kinds = ["sliding_attention" if window and layer % 2 else "full_attention" for layer in range(layers)]
    mx.random.seed(5)
    model = Model(
        ModelArgs(
            model_type="llama",
            hidden_size=128,
            num_hidden_layers=layers,
            intermediate_size=128,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=head_dim,
            rms_norm_eps=1e-5,
            vocab_size=VOCABULARY,
            max_position_embeddings=4096,
            attention_bias=bias,
            layer_types=kinds,
            sliding_window=window,
        )
    )
    model.set_dtype(mx.float32)
    for layer in model.layers:  # attention that looks for something
        layer.self_attn.q_proj.weight = layer.self_attn.q_proj.weight * 4
    mx.eval(model.parameters())
    return model
