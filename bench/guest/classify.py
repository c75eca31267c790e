# SPDX-License-Identifier: Apache-2.0
"""classify.py frame|match INVOCATION: an invocation's log, read as post-mortem reads it."""

import sys

sys.path.insert(0, "/usr/lib/python3/dist-packages")

from sparkd.adapters.catalogue import load_catalogue
from sparkd.adapters.journal import InvocationLog
from sparkd.core.classify import Classifier
from sparkd.core.lines import frame


def main() -> None:
    """Frame every line and, if asked, match it; a fatal line that is not found is an error."""
    what, invocation = sys.argv[1:]
    classifier = Classifier(load_catalogue())
    for entry in InvocationLog(invocation).read():
        for line in frame(entry.message, entry.source):
            if what == "match":
                classifier.feed(line)
    verdict = classifier.verdict()
    if what == "match" and verdict.label != "fatal-runtime":
        sys.exit(f"the fatal line was not found: {verdict}")


main()
