"""llama.cpp: stock llama-server and llama-perplexity, one session per configuration."""
