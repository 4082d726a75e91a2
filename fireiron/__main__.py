"""`python -m fireiron`: the command line."""

import sys

from fireiron.cli import main

if __name__ == "__main__":
    sys.exit(main())
