"""REFRACT tells how far a compressed KV cache moves a language model away from itself."""

__version__ = "0.1.0"
