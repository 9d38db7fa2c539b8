"""Small mlx-lm models with random weights: enough layers and heads to see a cache work, and quick."""

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


def tiny_hybrid() -> Any:
    """An LFM2: convolutions in layers 0 and 2, attention with heads of 32 in layers 1 and 3."""
    import mlx.core as mx
    from mlx_lm.models.lfm2 import Model, ModelArgs

    mx.random.seed(5)
    model = Model(
        ModelArgs(
            model_type="lfm2",
            vocab_size=VOCABULARY,
            hidden_size=128,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=4096,
            norm_eps=1e-5,
            conv_bias=False,
            conv_L_cache=3,
            block_dim=128,
            block_multiple_of=32,
            block_ffn_dim_multiplier=1.0,
            block_auto_adjust_ff_dim=False,
            block_ff_dim=128,
            full_attn_idxs=[1, 3],
        )
    )
    model.set_dtype(mx.float32)
    mx.eval(model.parameters())
    return model


def tiny_latent() -> Any:
    """A DeepSeek-V2 of one dense layer: latent attention (MLA)."""
    import mlx.core as mx
    from mlx_lm.models.deepseek_v2 import Model, ModelArgs

    mx.random.seed(5)
    model = Model(
        ModelArgs(
            vocab_size=VOCABULARY,
            hidden_size=64,
            intermediate_size=64,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=2,
            kv_lora_rank=32,
            q_lora_rank=32,
            qk_rope_head_dim=16,
            v_head_dim=32,
            qk_nope_head_dim=32,
            rope_scaling={"type": "yarn", "factor": 1.0, "original_max_position_embeddings": 2048, "mscale_all_dim": 0},
        )
    )
    mx.eval(model.parameters())
    return model
