"""The command line, with the fake engine behind it."""
