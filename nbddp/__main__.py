"""``python -m nbddp``: where the command ``nbddp`` is not on the path."""

import sys

from nbddp.cli import main

if __name__ == "__main__":
    sys.exit(main())
