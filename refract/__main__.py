"""`python -m refract` is the command `refract`."""

import sys

from refract.cli import main

if __name__ == "__main__":
    sys.exit(main())
