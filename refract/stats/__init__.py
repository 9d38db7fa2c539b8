"""Pure maths: values in, frozen values out, no I/O, numpy and the standard library only."""
