"""Any running server with OpenAI's completions API: weaker than an engine's own backend, and it says where."""
