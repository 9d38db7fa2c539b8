"""What runs in the interpreter that has vLLM, in a process of its own: it needs numpy, vLLM and nothing of refract's.

The parent makes this folder importable there under another name (see `start.py`), so modules here import each other
relatively and nothing else of the package but `wire`, which both ends share.
"""
