"""The SGLang engine: its HTTP server, running already or started here, one KV type a server."""
