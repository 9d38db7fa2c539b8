"""vLLM: an engine of its own in a child process, or a running server."""
