"""Tests of the axes: hand-made answers in, results out."""
