"""Benchmarks: each prints a table of ratios, which carry over between machines better than seconds do."""
