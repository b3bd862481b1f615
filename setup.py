"""``python setup.py bdist_wheel``: the patched wheel; ``python setup.py --help`` says more."""

import sys

from tools.wheels import main


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
