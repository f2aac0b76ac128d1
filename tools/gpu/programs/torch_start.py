"""Puts one tensor on the card, as the first thing that a program does there, and tells that it did."""

import importlib
import json
import sys
from typing import Any

if __name__ == "__main__":
    torch: Any = importlib.import_module("torch")
    found = float(torch.ones(1).cuda().sum())
    sys.stdout.write(json.dumps({"sum": found}) + "\n")
